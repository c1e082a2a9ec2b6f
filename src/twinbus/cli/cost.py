"""`twinbus cost`: what was metered (`show`), and what pairing is going to cost (`plan`)."""

from twinbus.cli import cost_plan, cost_show
from twinbus.cli.arguments import Commands


def add_arguments(commands: Commands) -> None:
    parser = commands.add_parser("cost")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    cost_show.add_arguments(actions)
    cost_plan.add_arguments(actions)
