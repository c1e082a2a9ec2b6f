"""`twinbus doctor`: checks this machine and says what to do about what is not well.

Changes nothing; what it writes to measure the disk it removes again.  Exit code 3 if anything is
bad.
"""

import argparse
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from twinbus.cli.arguments import CONNECTION_STRING, Commands, add_connection_string, add_json
from twinbus.cli.doctor.disk import look_at_disk
from twinbus.cli.doctor.findings import BAD, WARN, Finding
from twinbus.cli.doctor.machine import look_at_machine
from twinbus.cli.doctor.server import look_at_ports, look_at_server
from twinbus.cli.exit_codes import NO
from twinbus.cli.printing import print_json
from twinbus.config import HOST_DEFAULT, PORT_DEFAULT, PORT_MAX


def add_arguments(commands: Commands) -> None:
    parser = commands.add_parser(
        "doctor",
        description="Check Python, extras, Java, limits, clock, ports, disk and certificates, and "
        "the server, given a connection string.  Exit code 3 if anything is bad.",
    )
    parser.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="data directory whose disk and certificates to check (default: the current disk)",
    )
    parser.add_argument(
        "--host", default=HOST_DEFAULT, metavar="H", help=f"where to try ports ({HOST_DEFAULT})"
    )
    parser.add_argument(
        "--port",
        type=_port_number,
        action="append",
        metavar="N",
        help=f"port that must be free, or twinbus's; may be repeated ({PORT_DEFAULT})",
    )
    add_connection_string(parser)
    add_json(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    findings: list[Finding] = []
    for finding in _look(options):
        findings.append(finding)
        if not options.json:
            _print(finding)  # at once: some take their time
    states: list[str] = [finding.state for finding in findings]
    counts: dict[str, int] = {state: states.count(state) for state in (BAD, WARN)}
    if options.json:
        print_json({**counts, "findings": [asdict(finding) for finding in findings]})
    else:
        print(f"{len(findings)} checks: {counts[BAD]} bad, {counts[WARN]} to look at")
    return NO if counts[BAD] else 0


def _look(options: argparse.Namespace) -> Iterator[Finding]:
    yield from look_at_machine()
    yield from look_at_ports(options.host, options.port or [PORT_DEFAULT])
    yield from look_at_disk(options.data)
    text = options.connection_string or os.environ.get(CONNECTION_STRING)
    if text:
        yield from look_at_server(text)


def _print(finding: Finding) -> None:
    print(f"{finding.state:<4}  {finding.check:<18}  {finding.found}", flush=True)
    if finding.fix:
        print(f"{'':<26}fix: {finding.fix}", flush=True)


def _port_number(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= PORT_MAX:
        raise argparse.ArgumentTypeError(f"'{text[:64]}' is not a port; write 1 to {PORT_MAX}")
    return int(text)
