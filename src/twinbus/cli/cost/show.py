"""`twinbus cost show`: what was metered, of a data directory or of a running server."""

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from twinbus.cli.arguments import Commands, add_connection_string, add_json, connection_string
from twinbus.cli.cost.price_table import add_prices, money, origin, read_prices
from twinbus.cli.printing import print_json, print_table
from twinbus.client.meter import MeterClient
from twinbus.costs.prices import Prices
from twinbus.costs.rollup import BY, MonthBill, Pairing, Sum, month_bills, pairing_of, sums_by
from twinbus.errors import ConfigError
from twinbus.metered import Metered, iso, parse_iso
from twinbus.storage.disk import OsDisk
from twinbus.storage.meter_log import read_meter

END_OF_TIME_MS: Final = 253_402_300_799_999  # 9999-12-31T23:59:59.999Z


def add_arguments(actions: Commands) -> None:
    show = actions.add_parser(
        "show",
        help="show metered usage",
        description="Operations are billed in units of 64 KiB, rounded up for each message.",
    )
    show.add_argument(
        "--data", type=Path, metavar="DIR", help="a data directory; its server may be running"
    )
    add_connection_string(show)
    add_selection(show)
    add_json(show)
    show.set_defaults(run=run)


def add_selection(parser: argparse.ArgumentParser) -> None:
    """Of what span, summed up by what, at which prices."""
    parser.add_argument("--from", dest="since", type=moment, metavar="TIME", help="start time")
    parser.add_argument("--to", dest="until", type=moment, metavar="TIME", help="before this time")
    parser.add_argument(
        "--by",
        type=by_names,
        default=("entity", "kind"),
        metavar="WHAT",
        help="group by some of day,namespace,entity,kind (default: entity,kind)",
    )
    add_prices(parser, "a table of prices (default: the built-in one)")


def moment(text: str) -> int:
    try:
        return max(0, min(parse_iso(text), END_OF_TIME_MS))
    except ValueError:
        shown = f"'{text[:64]}' is not a time; write 2026-11-16 or 2026-11-16T07:00:00Z"
        raise argparse.ArgumentTypeError(shown) from None


def by_names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if not set(names) <= set(BY) or len(set(names)) < len(names):
        raise argparse.ArgumentTypeError(f"'{text[:64]}' is not some of {','.join(BY)}, each once")
    return names


def run(options: argparse.Namespace) -> int:
    prices = read_prices(options.prices)
    lines = _read(options)
    if options.json:
        print_json(_document(lines, options.by, prices))
    else:
        _print(lines, options.by, prices)
    return 0


def _read(options: argparse.Namespace) -> list[Metered]:
    since_ms = 0 if options.since is None else options.since
    until_ms = END_OF_TIME_MS if options.until is None else options.until
    if options.data is None:
        client = MeterClient(connection_string(options))
        return client.read(iso(since_ms), iso(until_ms))
    directory: Path = options.data / "meter"
    # Opening a disk makes its directory, and looking at something must not make it.
    if not directory.is_dir():
        raise ConfigError(
            f"nothing was metered in {options.data}; set --data to a server's data directory"
        )
    disk = None
    try:
        disk = OsDisk(directory)
        lines, damaged = read_meter(disk, since_ms, until_ms)
    except OSError as error:
        raise ConfigError(f"cannot read {directory} ({error.strerror}); check --data") from error
    finally:
        if disk is not None:
            disk.close()
    if damaged:
        print(f"twinbus: {damaged} damaged lines in {directory} are not counted", file=sys.stderr)
    return lines


def _document(lines: list[Metered], by: tuple[str, ...], prices: Prices) -> dict[str, object]:
    total = sums_by(lines, ()).get((), Sum())
    bills = month_bills(lines, prices)
    return document(sums_by(lines, by).items(), by, total, pairing_of(lines), bills, prices)


def document(
    rows: Iterable[tuple[tuple[str, ...], Sum]],
    by: tuple[str, ...],
    total: Sum,
    pairing: Pairing,
    bills: list[MonthBill],
    prices: Prices,
) -> dict[str, object]:
    return {
        "rows": [{**dict(zip(by, key, strict=True)), **vars(each)} for key, each in rows],
        "total": vars(total),
        "pairing": {**vars(pairing), "units": pairing.units},
        "currency": prices.currency,
        "prices_date": str(prices.date),
        "months": [
            {
                "month": bill.month,
                "units": bill.units,
                "base": float(bill.base),
                "operations": float(bill.operations),
                "pairing": float(bill.pairing),
            }
            for bill in bills
        ],
    }


def _print(lines: list[Metered], by: tuple[str, ...], prices: Prices) -> None:
    total = sums_by(lines, ()).get(())
    if total is None:
        print("nothing was metered in this period")
        return
    print_sums(sums_by(lines, by).items(), by, total)
    print()
    print_pairing(pairing_of(lines))
    print()
    print_bills(month_bills(lines, prices), prices)


def print_sums(
    sums: Iterable[tuple[tuple[str, ...], Sum]], by: tuple[str, ...], total: Sum, left_out: int = 0
) -> None:
    """The table; `left_out`: how many rows of it are not among these."""
    rows = [
        [*key, f"{each.operations:,}", f"{each.empty:,}", f"{each.units:,}"] for key, each in sums
    ]
    blank = [""] * (len(by) - 1)
    if left_out:
        rows.append([f"… and {left_out:,} more", *blank, "", "", ""])
    rows.append(["total", *blank, f"{total.operations:,}", f"{total.empty:,}", f"{total.units:,}"])
    print_table([*(name.upper() for name in by), "OPERATIONS", "EMPTY", "UNITS"], rows, len(by))


def print_pairing(pairing: Pairing) -> None:
    rows = [
        ["messages into backlog queues", f"{pairing.into_backlog:,}"],
        ["messages out of backlog queues", f"{pairing.out_of_backlog:,}"],
        ["polls of backlog queues that found nothing", f"{pairing.polls:,}"],
        ["pings", f"{pairing.pings:,}"],
        ["management of backlog queues", f"{pairing.management:,}"],
        ["pairing in all", f"{pairing.units:,}"],
    ]
    print_table(["OF THIS, PAIRING", "UNITS"], rows, 1)


def print_bills(bills: list[MonthBill], prices: Prices) -> None:
    rows = [
        [
            bill.month,
            f"{bill.units:,}",
            money(bill.base),
            money(bill.operations),
            money(bill.base + bill.operations),
            money(bill.pairing),
        ]
        for bill in bills
    ]
    print_table(["MONTH", "UNITS", "BASE", "OPERATIONS", "TOTAL", "OF WHICH PAIRING"], rows, 1)
    print(f"standard tier; {origin(prices)}")
