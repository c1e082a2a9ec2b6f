"""`twinbus cost`: what was metered (`show`), and what pairing is going to cost (`plan`)."""

from twinbus.cli.arguments import Commands
from twinbus.cli.cost import plan, show


def add_arguments(commands: Commands) -> None:
    parser = commands.add_parser("cost")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    show.add_arguments(actions)
    plan.add_arguments(actions)
