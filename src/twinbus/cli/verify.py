"""`twinbus verify`: read every byte of a data directory and say whether it is whole."""

import argparse
from dataclasses import asdict

from twinbus.cli.arguments import Commands, add_data, add_json
from twinbus.cli.exit_codes import NO
from twinbus.cli.printing import print_json
from twinbus.config import known_stores
from twinbus.errors import ConfigError, DirectoryInUse
from twinbus.storage.disk import OsDisk
from twinbus.storage.verify import verify


def add_arguments(commands: Commands) -> None:
    parser = commands.add_parser("verify")
    add_data(parser, "a data directory that no server has open")
    add_json(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    stores = known_stores(options.data)
    if not stores:
        raise ConfigError(f"{options.data} has no store; set --data to a server's data directory")
    is_whole = True
    documents: list[dict[str, object]] = []
    for store in stores:
        # Opening a disk makes its directory, and looking at something must not make it.
        if not store.is_dir():
            raise ConfigError(f"store {store} is missing; mount it, then verify again")
        try:
            report = verify(OsDisk(store))
        except DirectoryInUse as error:
            raise ConfigError(f"{error}; stop the server first") from error
        except OSError as error:
            raise ConfigError(f"cannot read {store} ({error.strerror}); check --data") from error
        is_whole = is_whole and report.whole
        documents.append({"store": str(store), "whole": report.whole, **asdict(report)})
        if not options.json:
            if len(stores) > 1:
                print(f"{store}:")
            print(report)
    if options.json:
        print_json({"whole": is_whole, "stores": documents})
    return 0 if is_whole else NO
