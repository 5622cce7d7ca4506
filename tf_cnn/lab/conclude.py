"""Shows rows and judges them: the last step of every subcommand that compares."""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tf_cnn.lab.config import BROKEN, KEPT, MeasureOptions, ShowOptions
from tf_cnn.lab.losses import describe_losses, describe_wrong, is_wrong
from tf_cnn.lab.rows import Row
from tf_cnn.lab.sentence import AS_BEFORE, NO_OTHER, answer, by_remark
from tf_cnn.lab.show import price_of_a_million, show
from tf_cnn.results.ratios import MIN_RUNS, Ratio, Significance, t_quantile
from tf_cnn.results.tables import abbreviate, escape_unprintable
from tf_cnn.system.errors import UsageError, format_flag

# More rounds than this are no advice.
_MAX_ROUNDS = 1000
_TOO_FEW = f'too few runs; {MIN_RUNS} or more of each would'


def conclude(rows: Sequence[Row], options: MeasureOptions, failed: bool = False) -> int:
    """Prints rows; returns the exit code: 1 if a run failed, or what --fail_below says."""
    rows = add_prices(rows, options.price_per_hour)
    if options.format == 'html':
        from tf_cnn.lab.page import make_page

        print(make_page(rows)[0])
    else:
        show(rows, options.format)
    code = print_verdict(rows, options)
    return BROKEN if failed else code


def print_verdict(rows: Sequence[Row], options: ShowOptions) -> int:
    """Prints why --fail_below does not hold; returns the exit code."""
    code, lines = judge(rows, options)
    for line in lines:
        print(escape_unprintable(line), file=sys.stderr)
    return code


# ---- prices --------------------------------------------------------------------------------------


def add_prices(rows: Sequence[Row], text: str | None) -> list[Row]:
    """Adds --price_per_hour; with several prices the cheapest row comes first.

    Raises UsageError for a wrong price, or a name that is neither a side nor a host.
    """
    if not text:
        return [*rows]
    prices = _read_prices(text)
    names = {row.who for row in rows} | {row.reference.name for row in rows}
    if unknown := [name for name in prices if name and name not in names]:
        known = ', '.join(sorted(names - {''})) or 'none; use one price'
        raise UsageError(f'--price_per_hour={text}: {unknown[0]} is not a side or host: {known}')
    usual = prices.get('')
    priced = [
        replace(
            row,
            price=prices.get(row.who, usual),
            reference=replace(row.reference, price=prices.get(row.reference.name, usual)),
        )
        for row in rows
    ]
    if len({*prices.values()}) > 1:
        priced.sort(key=lambda row: (price_of_a_million(row) or [math.inf])[0])
    return priced


def _read_prices(text: str) -> Mapping[str, float]:
    """Returns prices by the names of sides or hosts; '' is the price of all."""
    prices: dict[str, float] = {}
    for entry in text.split(','):
        name, _, number = entry.rpartition('=')
        try:
            price = float(number)
        except ValueError:
            price = math.nan
        if not 0 < price < math.inf:
            raise UsageError(
                f'--price_per_hour={text}: {number or "nothing"} is not a positive number; use a '
                'price such as 1.20, or NAME=1.20 for each side, with commas'
            )
        if name in prices:
            raise UsageError(
                f'--price_per_hour={text}: {name or "the price of all"} has two prices; remove one'
            )
        prices[name] = price
    return prices


# ---- exit codes ----------------------------------------------------------------------------------


def judge(rows: Sequence[Row], options: ShowOptions) -> tuple[int, list[str]]:
    """Returns the exit code of --fail_below and --same_losses, and lines that say why it is not
    0.
    """
    answers = []
    if options.fail_below is not None:
        answers.append(_judge_rates(rows, options.fail_below, options.exit_unclear))
    if options.same_losses:
        answers.append(_judge_losses(rows, options.exit_unclear))
    lines = [line for _, lines in answers for line in lines]
    codes = {code for code, _ in answers}
    return BROKEN if BROKEN in codes else max(codes, default=KEPT), [*dict.fromkeys(lines)]


def _judge_losses(rows: Sequence[Row], unclear_code: int) -> tuple[int, list[str]]:
    if wrong := describe_wrong(rows):
        return BROKEN, [f'--same_losses: {abbreviate(wrong)}']
    agree, uncompared = describe_losses(rows)
    reasons = uncompared or ['no two equal machines have the same settings with --deterministic']
    return (KEPT, []) if agree else (unclear_code, [f'--same_losses: cannot tell: {reasons[0]}'])


def _judge_rates(rows: Sequence[Row], limit: float, unclear_code: int) -> tuple[int, list[str]]:
    flag = format_flag('fail_below', limit)
    slow = [
        f'{row.name} ({row.ratio.value:.3f})' for row in rows if row.ratio and _is_below(row, limit)
    ]
    missing = by_remark(row for row in rows if row.is_missing)
    wrong = describe_wrong(rows)
    causes = {'slower than that': slow, 'some results are unknown': missing, 'wrong': wrong}
    if lines := [
        f'{flag}: {title}: {abbreviate([*dict.fromkeys(texts)])}'
        for title, texts in causes.items()
        if texts
    ]:
        return BROKEN, lines
    reasons = [_describe_unclear(row, limit) for row in rows]
    if texts := [text for text, _ in reasons if text]:
        rounds = max(rounds for _, rounds in reasons)
        needed = f'; about {rounds:,} rounds would' if 0 < rounds < _MAX_ROUNDS else ''
        return unclear_code, [f'{flag}: cannot tell: {abbreviate(texts)}{needed}']
    return (KEPT, []) if any(row.ratio for row in rows) else (BROKEN, [f'{flag}: {answer(rows)}'])


def _is_below(row: Row, limit: float) -> bool:
    return row.is_pair and row.is_significant and row.ratio is not None and row.ratio.value < limit


def _describe_unclear(row: Row, limit: float) -> tuple[str, int]:
    """Returns why a row may have lost more than the limit allows, '' if it is known, and about how
    many rounds would tell, 0 if that is unknown.
    """
    if not row.runs or row.is_baseline or row.is_missing or _is_below(row, limit):
        return '', 0
    name, ratio = row.name or 'the result', row.ratio
    is_earlier = row.reference.same == AS_BEFORE
    if not ratio:
        is_known = row.remark.startswith(('only in', NO_OTHER)) or is_wrong(row)
        return '' if is_known else f'{name}: {row.remark}', 0
    if ratio.is_short:
        return f'{name}: {ratio.verdict.value}', 0
    if ratio.verdict is Significance.FEW_RUNS:
        return f'{name}: {"the runs before differ too much" if is_earlier else _TOO_FEW}', 0
    # A link has no interval.
    low = ratio.interval[0] if ratio.interval else limit
    if low >= limit:
        return '', 0
    num_runs = min(filter(None, (len(row.runs), len(row.compared_runs))))
    rounds = 0 if is_earlier else rounds_needed(ratio, num_runs, limit)
    return f'{name}: {low:.3f} is not excluded', rounds


def rounds_needed(ratio: Ratio, num_runs: int, limit: float) -> int:
    """Returns about how many runs of each would exclude the limit, or show that it is broken; 0 if
    more runs do not help.

    A ratio keeps its distance, and the interval becomes narrower with the root of the number; two
    more make up for Student's t. Of runs that spread by 2 or 4 %, half or more of those to which
    this is said have a verdict then.
    """
    value, (low, high) = ratio.value, ratio.interval or (0.0, 0.0)
    distance = math.log(value / limit) if value >= limit else -math.log(value)
    if distance <= 0 or not low:
        return 0
    deviations = math.log(high / low) / t_quantile(2 * num_runs - 2) / distance
    return max(num_runs + 1, math.ceil(num_runs * deviations**2) + 2)
