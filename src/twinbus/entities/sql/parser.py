"""The grammar of SQL filters and actions: tokens → nodes, by recursive descent.

The grammar is drawn in docs/reference/filters.md.  Brackets may hold a condition or a value, which
only what follows tells; both are read by the same functions, and each place then checks which of
the two it got.  Fails with nothing but ArgumentInvalid, and recurses no deeper than
FILTER_NESTING_MAX brackets allow.
"""

from typing import Final

from twinbus.entities.fields import SETTABLE_NAMES
from twinbus.entities.sql.lexer import (
    END,
    KEYWORD,
    NAME,
    NUMBER,
    PARAMETER,
    QUOTED,
    SIGN,
    TEXT,
    Lexer,
    Token,
)
from twinbus.entities.sql.nodes import (
    Chain,
    Compare,
    Condition,
    Constant,
    Exists,
    In,
    IsNull,
    Junction,
    Like,
    NamedProperty,
    NewIdCall,
    Not,
    Property,
    Sign,
    SqlNode,
    SystemProperty,
    UserProperty,
)
from twinbus.entities.sql.values import (
    ADD,
    DIVIDE,
    EQUAL,
    GREATER,
    GREATER_EQUAL,
    INT64_MAX,
    LESS,
    LESS_EQUAL,
    MULTIPLY,
    NOT_EQUAL,
    REMAINDER,
    SUBTRACT,
    FilterError,
)
from twinbus.errors import ArgumentInvalid
from twinbus.limits import ACTION_STATEMENTS_MAX, FILTER_NESTING_MAX

_COMPARISONS: Final = {
    "=": EQUAL,
    "<>": NOT_EQUAL,
    "!=": NOT_EQUAL,
    "<": LESS,
    "<=": LESS_EQUAL,
    ">": GREATER,
    ">=": GREATER_EQUAL,
}
_SUMS: Final = {"+": ADD, "-": SUBTRACT}
_PRODUCTS: Final = {"*": MULTIPLY, "/": DIVIDE, "%": REMAINDER}
_FUNCTIONS: Final = ("newid", "property", "p")
_WORDS: Final = {"TRUE": True, "FALSE": False, "NULL": None}


class Statement:
    """One SET (with a value) or REMOVE (without) of an action."""

    __slots__ = ("target", "value")

    def __init__(self, target: Property, value: SqlNode | None) -> None:
        self.target = target
        self.value = value


class Parser:
    """Reads one text.  `parameters`: values by lower-case name, without the @.

    Its many methods are the rules of the grammar, one each, and the words they are written in.
    """

    __slots__ = ("_at", "_lexer", "_nesting", "_parameters", "_token", "_tokens")

    def __init__(self, text: str, what: str, parameters: dict[str, object]) -> None:
        self._lexer = Lexer(text, what)
        self._parameters = parameters
        self._tokens = self._lexer.tokens()
        self._at = 0
        self._token = self._tokens[0]
        self._nesting = 0

    # --- tokens -----------------------------------------------------------------------------------
    def _advance(self) -> Token:
        token = self._token
        if token.kind != END:
            self._at += 1
            self._token = self._tokens[self._at]
        return token

    def _following(self) -> Token:
        """The token after the current one."""
        return self._tokens[min(self._at + 1, len(self._tokens) - 1)]

    def _is_sign(self, text: str) -> bool:
        return self._token.kind == SIGN and self._token.text == text

    def _is_keyword(self, text: str) -> bool:
        return self._token.kind == KEYWORD and self._token.text == text

    def _take_sign(self, text: str) -> bool:
        if not self._is_sign(text):
            return False
        self._advance()
        return True

    def _take_keyword(self, text: str) -> bool:
        if not self._is_keyword(text):
            return False
        self._advance()
        return True

    def _expected(self, what: str) -> ArgumentInvalid:
        token = self._token
        return self._lexer.error(token.at, f"expected {what}, found {token.shown()}")

    def _need_sign(self, text: str) -> None:
        if not self._take_sign(text):
            raise self._expected(f"'{text}'")

    # --- entry points -----------------------------------------------------------------------------
    def filter(self) -> SqlNode:
        """The whole text as a condition."""
        node = self._condition(self._or())
        if self._token.kind != END:
            raise self._expected("AND, OR or the end")
        return node

    def action(self) -> list[Statement]:
        """The whole text as statements; semicolons between them may be left out."""
        statements: list[Statement] = []
        while self._token.kind != END:
            if self._take_sign(";") and statements:
                continue
            if len(statements) >= ACTION_STATEMENTS_MAX:
                raise self._lexer.error(
                    self._token.at, f"more than {ACTION_STATEMENTS_MAX} statements"
                )
            statements.append(self._statement())
        if not statements:
            raise self._expected("SET or REMOVE")
        return statements

    def _statement(self) -> Statement:
        if self._take_keyword("SET"):
            target = self._target(removing=False)
            self._need_sign("=")
            return Statement(target, self._value(self._sum()))
        if self._take_keyword("REMOVE"):
            return Statement(self._target(removing=True), None)
        raise self._expected("SET or REMOVE")

    def _target(self, removing: bool) -> Property:
        at = self._token.at
        target = self._property()
        if isinstance(target, SystemProperty):
            if target.name not in SETTABLE_NAMES:
                raise self._lexer.error(
                    at, f"an action may change only sys. {', '.join(sorted(SETTABLE_NAMES))}"
                )
            if removing and target.name == "messageid":
                raise self._lexer.error(at, "a message cannot be without its messageid")
        return target

    # --- conditions -------------------------------------------------------------------------------
    def _condition(self, node: SqlNode) -> SqlNode:
        if not isinstance(node, Condition):
            raise self._expected("a comparison, LIKE, IN or IS after the value")
        return node

    def _value(self, node: SqlNode) -> SqlNode:
        if isinstance(node, Condition):
            raise self._expected("AND, OR or ')': a condition is not a value")
        return node

    def _or(self) -> SqlNode:
        first = self._and()
        if not self._is_keyword("OR"):
            return first
        operands = [self._condition(first)]
        while self._take_keyword("OR"):
            operands.append(self._condition(self._and()))
        return Junction(operands, deciding=True)

    def _and(self) -> SqlNode:
        first = self._not()
        if not self._is_keyword("AND"):
            return first
        operands = [self._condition(first)]
        while self._take_keyword("AND"):
            operands.append(self._condition(self._not()))
        return Junction(operands, deciding=False)

    def _not(self) -> SqlNode:
        if not self._is_keyword("NOT"):
            return self._comparison()
        negated = False
        while self._take_keyword("NOT"):
            negated = not negated  # twice is as good as never, for unknown too
        operand = self._condition(self._comparison())
        return Not(operand) if negated else operand

    def _comparison(self) -> SqlNode:
        if self._take_keyword("EXISTS"):
            self._need_sign("(")
            named = self._any_property("the name of a property")
            self._need_sign(")")
            return Exists(named)
        left = self._sum()
        token = self._token
        if token.kind == SIGN:
            operator = _COMPARISONS.get(token.text)
            if operator is None:
                return left
            left = self._value(left)
            self._advance()
            return Compare(operator, left, self._value(self._sum()))
        if token.kind != KEYWORD or token.text not in ("IS", "NOT", "IN", "LIKE"):
            return left
        left = self._value(left)
        if self._take_keyword("IS"):
            return self._is_null(left, token)
        negated = self._take_keyword("NOT")
        if self._take_keyword("IN"):
            node: SqlNode = In(left, self._choices())
        elif self._take_keyword("LIKE"):
            node = self._like(left)
        else:
            raise self._expected("IN or LIKE after NOT")
        return Not(node) if negated else node

    def _is_null(self, left: SqlNode, token: Token) -> SqlNode:
        if not isinstance(left, Property):
            raise self._lexer.error(token.at, "only a property can be compared by IS NULL")
        negated = self._take_keyword("NOT")
        if not self._take_keyword("NULL"):
            raise self._expected("NULL" if negated else "NULL or NOT NULL")
        return IsNull(left, negated)

    def _choices(self) -> list[SqlNode]:
        self._need_sign("(")
        choices = [self._value(self._sum())]
        while self._take_sign(","):
            choices.append(self._value(self._sum()))
        if not self._take_sign(")"):
            raise self._expected("',' or ')'")
        return choices

    def _like(self, left: SqlNode) -> SqlNode:
        at = self._token.at
        pattern = self._value(self._sum())
        escape = self._value(self._sum()) if self._take_keyword("ESCAPE") else None
        try:
            return Like(left, pattern, escape)
        except FilterError as error:
            raise self._lexer.error(at, str(error).rstrip(".")) from None

    # --- values -----------------------------------------------------------------------------------
    def _sum(self) -> SqlNode:
        return self._chain(_SUMS)

    def _chain(self, operators: dict[str, int]) -> SqlNode:
        """Operands of + and -, which are chains of * / %, whose operands are signed values."""
        is_sum = operators is _SUMS
        first = self._chain(_PRODUCTS) if is_sum else self._signed()
        if self._token.kind != SIGN or self._token.text not in operators:
            return first
        operands = [self._value(first)]
        used: list[int] = []
        while self._token.kind == SIGN and self._token.text in operators:
            used.append(operators[self._advance().text])
            operands.append(self._value(self._chain(_PRODUCTS) if is_sum else self._signed()))
        return Chain(operands, used)

    def _signed(self) -> SqlNode:
        negative = False
        count = 0
        while self._is_sign("+") or self._is_sign("-"):
            negative = negative != (self._advance().text == "-")
            count += 1
        token = self._token
        value = token.value
        if token.kind == NUMBER and isinstance(value, int) and (negative or value <= INT64_MAX):
            self._advance()
            return Constant(-value if negative else value)
        operand = self._primary()
        return Sign(self._value(operand), negative) if count else operand

    def _primary(self) -> SqlNode:
        token = self._token
        if token.kind == TEXT or token.kind == NUMBER:
            if isinstance(token.value, int) and token.value > INT64_MAX:
                raise self._lexer.error(token.at, "the number is too large for 64 bits")
            self._advance()
            return Constant(token.value)
        if token.kind == PARAMETER:
            return self._parameter()
        if token.kind == KEYWORD and token.text in _WORDS:
            self._advance()
            return Constant(_WORDS[token.text])
        if self._is_sign("("):
            return self._brackets()
        if self._is_call("newid"):
            self._advance()
            self._advance()
            self._need_sign(")")
            return NewIdCall()
        return self._any_property("a value")

    def _brackets(self) -> SqlNode:
        opening = self._advance()
        self._enter(opening)
        node = self._or()
        self._nesting -= 1
        if not self._take_sign(")"):
            raise self._expected("an operator or ')'")
        return node

    def _enter(self, opening: Token) -> None:
        self._nesting += 1
        if self._nesting > FILTER_NESTING_MAX:
            raise self._lexer.error(
                opening.at, f"brackets are nested more than {FILTER_NESTING_MAX} deep"
            )

    def _parameter(self) -> SqlNode:
        token = self._advance()
        lower = token.text.lower()
        if lower not in self._parameters:
            raise self._lexer.error(
                token.at, f"the parameter @{token.text[:32]} has not been given a value"
            )
        return Constant(self._parameters[lower])

    def _is_call(self, name: str) -> bool:
        following = self._following()
        return (
            self._token.kind == NAME
            and self._token.text.lower() == name
            and following.kind == SIGN
            and following.text == "("
        )

    def _any_property(self, expected: str) -> Property:
        """A property by its name, or property(name)."""
        if not (self._is_call("property") or self._is_call("p")):
            return self._property(expected)
        self._advance()
        self._enter(self._advance())
        node = NamedProperty(self._value(self._sum()))
        self._nesting -= 1
        self._need_sign(")")
        return node

    def _property(self, expected: str = "the name of a property") -> Property:
        """[scope.]name"""
        first = self._identifier(expected)
        if self._is_sign("(") and first.kind == NAME:
            if first.text.lower() in _FUNCTIONS:
                raise self._lexer.error(first.at, f"expected {expected}, found a function")
            raise self._lexer.error(
                first.at,
                f"'{first.text[:32]}' is not a function; there are {', '.join(_FUNCTIONS)}",
            )
        if not self._take_sign("."):
            return UserProperty(first.text)
        scope = first.text.lower()
        if scope not in ("sys", "user"):
            raise self._lexer.error(
                first.at,
                f"the scope '{first.text[:32]}' is neither sys nor user; "
                "put names that contain dots into brackets: [a.b]",
            )
        second = self._identifier("the name of a property")
        return SystemProperty(second.text) if scope == "sys" else UserProperty(second.text)

    def _identifier(self, expected: str) -> Token:
        if self._token.kind == NAME or self._token.kind == QUOTED:
            return self._advance()
        if self._token.kind == KEYWORD and expected != "a value":
            raise self._expected(f"{expected} (put keywords into brackets)")
        raise self._expected(expected)
