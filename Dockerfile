# twinbus in the place of Microsoft's emulator: docs/operating/docker.md.
#
#   docker build --tag twinbus .
#   docker run --rm --publish 5672:5672 --publish 5300:5300 --volume twinbus:/data twinbus

# The Python that the tests run on.
ARG PYTHON=3.11

FROM python:${PYTHON}-slim AS build
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY pyproject.toml setup.py README.md LICENSE ./
COPY src src
# With a C compiler at hand the hot modules are compiled; what twinbus needs comes along.
RUN pip wheel --no-cache-dir --wheel-dir /wheels .

FROM python:${PYTHON}-slim
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir --no-index --find-links /wheels twinbus
# The directory exists and is the user's before it is a volume, so that a new volume is so too.
RUN useradd --system --uid 10001 --no-create-home twinbus \
    && install --directory --owner twinbus --group twinbus /data
USER twinbus
WORKDIR /data
VOLUME /data
EXPOSE 5672 5300
# There is no curl in a slim image, but there is Python.  A status of 400 or more is an error to it.
HEALTHCHECK --interval=10s --timeout=5s --start-period=5s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:5672/health', timeout=4)"]
ENTRYPOINT ["twinbus"]
CMD ["emulator", "--host", "0.0.0.0", "--data", "/data"]
