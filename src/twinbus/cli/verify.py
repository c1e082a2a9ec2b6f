"""`twinbus verify`: read every byte of a data directory and say whether it is whole."""

import argparse

from twinbus.cli.arguments import Commands, add_data


def add_arguments(commands: Commands) -> None:
    verify = commands.add_parser("verify", help="check every checksum of a data directory")
    add_data(verify, "a data directory that no server has open")
    verify.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from twinbus.storage.verify import verify  # noqa: PLC0415

    print(verify(options.data))
    return 0
