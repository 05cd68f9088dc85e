"""Which format a trace has: a known one, by its columns, or a table whose columns are named.

A new format is one entry of `FORMATS`.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from penstock.checks import shown
from penstock.errors import InputError, nearest
from penstock.inputs.other_tools import refuse_other_tools
from penstock.inputs.source import Source
from penstock.workload.casts import DECIMALS, Unit


@dataclass(frozen=True)
class Format:
    """How one family of trace files says what it says."""

    name: str  # for `format`
    prompt: str  # column of prompt tokens
    output: str  # column of output tokens
    arrival: str | None = None  # column of arrival times; None: lengths only
    unit: Unit = "s"  # of arrival times
    whole: bool = False  # arrival times have no fractions of it
    marks: tuple[str, ...] = ()  # further columns, by which it is told from one with the same names
    zero_output_failed: bool = False  # 0 output tokens mark a failed request, to be dropped
    hash_block: int = 0  # tokens in a block that ids name; 0: it has no such column
    ids: str = "hash_ids"  # column of ids of the blocks of the prompt
    ids_with_output: str = "hash_ids_with_output"  # of prompt and output together
    priority: str | None = None  # column of priorities: smaller ones are served first
    declared: str | None = None  # column of the most output tokens that requests may make

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read."""
        return (*((self.arrival,) if self.arrival else ()), self.prompt, self.output)

    def reads(self, header: Collection[str]) -> dict[str, str]:
        """Return the column of each role, of a file with these columns."""
        ids = [name for name in (self.ids_with_output, self.ids) if name in header]
        roles = {"arrival": self.arrival, "prompt": self.prompt, "output": self.output}
        roles |= {"ids": ids[0] if ids and self.hash_block else None}
        roles |= {"priority": self.priority, "declared": self.declared}
        return {role: name for role, name in roles.items() if name}

    def fits(self, header: Collection[str]) -> bool:
        """Whether a file with these columns has this format."""
        return all(column in header for column in (*self.columns, *self.marks))


FORMATS = (
    # Azure, 2023 and 2024 (CSV)
    Format("azure", "ContextTokens", "GeneratedTokens", "TIMESTAMP", "date"),
    # BurstGPT, 6 or 8 columns (CSV, seconds); 0 response tokens is a failure
    Format("burstgpt", "Request tokens", "Response tokens", "Timestamp", zero_output_failed=True),
    # Vidur, processed traces (CSV, s)
    Format("vidur", "num_prefill_tokens", "num_decode_tokens", "arrived_at"),
    # Lengths without times (CSV; Vidur, Etalon)
    Format("lengths", "num_prefill_tokens", "num_decode_tokens"),
    # RAGPulse (JSON Lines, seconds as text)
    Format(
        "ragpulse", "input_length", "output_length", "timestamp", marks=("hash_ids.sys_prompt",)
    ),
    # Qwen-Bailian (JSON Lines, seconds)
    Format("qwen", "input_length", "output_length", "timestamp", marks=("chat_id",), hash_block=16),
    # Mooncake (JSON Lines, milliseconds)
    Format(
        "mooncake", "input_length", "output_length", "timestamp", "ms", whole=True, hash_block=512
    ),
    # LLMServingSim (JSON Lines, whole nanoseconds)
    Format("llmservingsim", "input_toks", "output_toks", "arrival_time_ns", "ns"),
    # SplitwiseSim (CSV, seconds)
    Format("splitwisesim", "prompt_size", "token_size", "arrival_timestamp"),
    # APEX+ (JSON Lines, nanoseconds)
    Format("apex", "ContextTokens", "GeneratedTokens", "StartTimeOffset", "ns"),
)
"""The known formats, the more specific first."""

PLAIN = "plain"
_OWN_NAMES = {
    "prompt_tokens": ("prompt_tokens", "prompt", "input_tokens", "num_prompt_tokens"),
    "output_tokens": (
        "output_tokens", "output", "completion_tokens", "generated_tokens", "num_output_tokens",
    ),
}  # fmt: skip
_ARRIVAL_UNITS: dict[str, Unit] = {f"arrival_{unit}": unit for unit in DECIMALS}
_LIKE_TIMES = (
    "arrival", "arrivals", "arrived_at", "arrival_time", "created", "created_at",
    "time", "times", "timestamp", "date", "datetime",
)  # fmt: skip
_REMEDY = (
    "`columns: {arrival_s: NAME, prompt_tokens: NAME, output_tokens: NAME}` (arrival_s may be "
    "left out)"
)


def check_choice(columns: object, where: object) -> None:
    """Refuse what chooses columns and rows and is no mapping."""
    values = "names of columns to the values of the rows to read, such as {http_code: 200}"
    for what, given, kinds, of in (
        ("columns", columns, str, f"names to names of columns, as {_REMEDY}"),
        ("where", where, str | int | float | None, values),
    ):
        if given is not None and not (
            isinstance(given, Mapping)
            and all(isinstance(k, str) and isinstance(v, kinds) for k, v in given.items())
        ):
            raise InputError(f"{what} is {shown(given)}, but must map {of}")


def chosen_format(
    source: Source,
    header: Collection[str],
    name: str | None,
    columns: Mapping[str, str] | None,
    hash_block: int = 0,
) -> Format:
    """Return the format of a name, else of these columns, else a plain one."""
    # A plain one's hash ids name blocks of so many tokens.
    names = [format.name for format in FORMATS]
    if name is not None and name not in (*names, PLAIN):
        near = nearest(str(name), (*names, PLAIN))
        raise InputError(f"trace format {shown(name)} is not known{near}")
    if columns is not None and name not in (None, PLAIN):
        raise InputError(
            f"`columns` are for plain tables, but the format {name!r} has its own; leave one of "
            "them out"
        )
    if columns is None and name in names:
        chosen = FORMATS[names.index(name)]
        absent = [column for column in chosen.columns if column not in header]
        if absent:
            raise source.fault(
                f"format {name!r} needs the column {absent[0]!r}, but the file has "
                f"{_listed(header)}. "
                f"Leave `format` out to have it recognised, or name the columns with {_REMEDY}"
            )
        return chosen
    if columns is None and name is None:
        for format in FORMATS:
            if format.fits(header):
                return format
    return _plain(source, header, columns or {}, hash_block)


def _plain(
    source: Source, header: Collection[str], columns: Mapping[str, str], hash_block: int
) -> Format:
    """Describe a table whose columns the user names, or that bears Penstock's own names."""
    roles = {alias: role for role, aliases in _OWN_NAMES.items() for alias in aliases}
    roles |= dict.fromkeys(_ARRIVAL_UNITS, "arrival")
    # Only where it is asked for: many tables have such a column, of words too.
    keys = roles | {
        "priority": "priority",
        "declared_tokens": "declared",
        "max_tokens": "declared",
        "hash_ids": "ids",
        "hash_ids_with_output": "ids_with_output",
    }
    named = _named_by_user(source, header, columns, keys)
    _add_own_names(source, header, roles, named)
    if "prompt_tokens" not in named or "output_tokens" not in named:
        refuse_other_tools(source)
        formats = ", ".join(format.name for format in FORMATS)
        raise source.fault(
            f"the columns {_listed(header)} are those of no known format ({formats}). Name them "
            f"with {_REMEDY}"
        )
    # without a word of the user, one column that looks like times is the arrival
    times = [column for column in header if column.strip().lower() in _LIKE_TIMES]
    unit: Unit | None = None
    if times and not columns and "arrival" not in named:
        if len(times) > 1:
            raise source.fault(
                f"the columns {_listed(times)} all look like arrival times, so which one is meant "
                "is unclear. Choose "
                f"with `columns: {{arrival_s: {times[0]}}}` (or arrival_ms, arrival_us, arrival_ns)"
            )
        named["arrival"] = times[0], times[0]
        unit = "time"
    key, arrival = named.get("arrival", ("arrival_s", None))
    prompt, output = named["prompt_tokens"][1], named["output_tokens"][1]
    priority, declared = (named.get(role, (role, None))[1] for role in ("priority", "declared"))
    unit = unit or _ARRIVAL_UNITS[key]
    ids, whole = (named.get(role, (role, None))[1] for role in ("ids", "ids_with_output"))
    if (ids or whole) and not hash_block:
        raise InputError(
            f"`columns` name hash ids ({shown(ids or whole)}), but not how many tokens each stands "
            "for; give hash_block"
        )
    return Format(
        PLAIN, prompt, output, arrival, unit, hash_block=hash_block, priority=priority,
        declared=declared, ids=ids or Format.ids, ids_with_output=whole or Format.ids_with_output,
    )  # fmt: skip


def _named_by_user(
    source: Source, header: Collection[str], columns: Mapping[str, str], keys: Mapping[str, str]
) -> dict[str, tuple[str, str]]:
    """Return the key and the column of each role that the user gives a column."""
    named: dict[str, tuple[str, str]] = {}  # role -> (key, column)
    for key, column in columns.items():
        if key not in keys:
            raise InputError(
                f"`columns` have the key {shown(key)}, which is not known{nearest(key, keys)}"
            )
        if column not in header:
            raise source.fault(
                f"`columns` name the column {shown(column)}, which is not "
                f"there{nearest(column, header)}"
            )
        role = keys[key]
        if role in named:
            raise InputError(
                f"`columns` name {role} twice, as {named[role][0]!r} and {key!r}; keep one"
            )
        twice = next((other for other, held in named.values() if held == column), None)
        if twice is not None:
            raise InputError(
                f"`columns` give the column {shown(column)} to {twice} and {key}, but it is one "
                "of them; name another"
            )
        named[role] = key, column
    return named


def _add_own_names(
    source: Source,
    header: Collection[str],
    roles: Mapping[str, str],
    named: dict[str, tuple[str, str]],
) -> None:
    """Add columns with names of Penstock's own, for roles that are left."""
    by_user = set(named)
    for own, role in roles.items():
        if own not in header or role in by_user:
            continue
        if role in named:
            raise source.fault(
                f"has the columns {named[role][0]!r} and {own!r}, so which one is meant is "
                f"unclear. Choose with `columns: {{{own if role == 'arrival' else role}: {own}}}`, "
                "or the other"
            )
        named[role] = own, own


def _listed(names: Collection[str]) -> str:
    first = ", ".join(shown(name) for name in list(names)[:12])
    return first + (f" and {len(names) - 12:,} more" if len(names) > 12 else "")
