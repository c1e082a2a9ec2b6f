"""`twinbus env`: shell lines that point clients at a running server and make them trust it."""

import argparse
import shlex

from twinbus.certificates import ca_bundle, ca_certificate
from twinbus.cli.arguments import CONNECTION_STRING, Commands, add_data, add_json
from twinbus.cli.printing import print_json
from twinbus.cli.running import find_running


def add_arguments(commands: Commands) -> None:
    env = commands.add_parser("env")
    add_data(env, "the data directory of a running server")
    add_json(env, "one document with the variables")
    env.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    data_dir = options.data.absolute()
    running = find_running(data_dir)
    variables: dict[str, str] = {}
    for name, text in running.connection_strings.items():
        if not variables:
            variables[CONNECTION_STRING] = text
        if len(running.connection_strings) > 1:
            variables[f"{CONNECTION_STRING}_{name.upper().replace('-', '_')}"] = text
    if running.has_own_authority:
        bundle = ca_bundle(data_dir)
        variables |= {
            "REQUESTS_CA_BUNDLE": str(bundle),
            "SSL_CERT_FILE": str(bundle),
            # Node adds this one to the authorities it knows, so it must not hold them all again.
            "NODE_EXTRA_CA_CERTS": str(ca_certificate(data_dir)),
        }
    if options.json:
        print_json(variables)
        return 0
    for name, value in variables.items():
        print(f"export {name}={shlex.quote(value)}")
    return 0
