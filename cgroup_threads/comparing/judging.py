"""What a comparison says, as notices. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Final

from ..notices import Level, Notice, shown
from .llama_reading import read_llama_summary
from .ratio import invert, judge_ratio
from .records import NOTHING, ArmResult, Difference, OutputVerdict, Ratio, Run, Terms
from .wording import say_end, say_ratio

NOISY: Final = 0.1  # standard deviation over median
FEW: Final = 3


def find_notices(
    plain: ArmResult, governed: ArmResult, ratio: Ratio | None, output: OutputVerdict, terms: Terms
) -> tuple[Notice, ...]:
    """All there is to say, the ratio first."""
    found = [_judge_time(plain, governed, ratio, terms)]
    found += _judge_ends(plain, governed, terms)
    found.append(_judge_output(output, terms))
    found += _judge_noise(plain, governed, ratio)
    found += _read_llama(plain, governed)
    return tuple(found)


def _judge_time(plain: ArmResult, governed: ArmResult, ratio: Ratio | None, terms: Terms) -> Notice:
    verdict = judge_ratio(ratio)
    if ratio is None or (verdict == "unknown" and ratio.bound):
        return Notice("compare-no-time", "there is nothing to compare: an arm has no time", "warning")
    if verdict == "unknown":
        message = f"governed is {say_ratio(ratio, 'as fast')} in one round, which has no spread: it may be chance"
        return Notice("compare-one-round", message, "warning", "--runs 5")
    if bool(plain.failed) != bool(governed.failed):
        return Notice("compare-failed-time", "times are not compared: the runs of one arm failed", "warning")
    if verdict == "same":
        return Notice("compare-same", f"no measurable difference: governed is {say_ratio(ratio, 'as fast')}")
    if verdict == "slower":
        # Two rounds agree by chance too often for a check to fail on them.
        level: Level = "problem" if ratio.bound or len(ratio.rounds) >= FEW else "warning"
        return Notice("compare-slower", f"governed is {say_ratio(invert(ratio), 'slower')}", level)
    return Notice("compare-faster", f"governed is {say_ratio(ratio, 'faster')}")


def _judge_ends(plain: ArmResult, governed: ArmResult, terms: Terms) -> list[Notice]:
    found = []
    for result in (plain, governed):
        name = result.arm.name
        if result.gave_up:
            message = f"{name}: not ended after {terms.limit:g} s, killed, and not run again"
            found.append(Notice("compare-time-limit", message, "problem" if result is governed else "warning"))
        if result.failed:
            only = result is governed and not plain.failed
            message = f"{name}: {len(result.failed)} of {len(result.ended)} runs failed: {say_end(result.failed[-1])}"
            found.append(Notice("compare-failed", message, "problem" if only else "warning"))
    return found


def _judge_output(output: OutputVerdict, terms: Terms) -> Notice:
    what = "output" if terms.output is None else shown(terms.output, 100)
    about = f" ({output.reason})" if output.reason else ""
    if output.state == "unknown":
        return Notice("compare-output-unknown", f"{what}: {output.reason}", "warning")
    if output.state == "equal":
        how = about or ", byte for byte"
        fix = "--output FILE compares a file" if output.reason == NOTHING and terms.output is None else ""
        return Notice("compare-output-equal", f"{what}: equal{how}, {output.runs} runs", fix=fix)
    if output.state == "close":
        how = f"largest relative error {output.error:.1e}, tolerance {terms.tolerance:.0e}"
        return Notice("compare-output-close", f"{what}: equal within the tolerance ({how}), {output.runs} runs")
    examples = _say_differences(output.differences)
    if output.state == "differ":
        fix = "--ignore REGEX leaves lines out that name times or thread counts; --tolerance"
        return Notice("compare-output-differs", f"{what}: differs{about}{examples}", "problem", fix)
    both, plain, governed = output.varying
    if governed:
        message = f"{what}: differs from run to run, but only when governed{about}{examples}"
        return Notice("compare-output-unsteady", message, "warning", "more --runs tell chance from cause")
    who = "in both arms" if both else "as it is, not when governed"
    count = f"{both + plain} {'places vary' if both + plain > 1 else 'place varies'} from run to run {who}"
    rest = f", the rest is equal (largest relative error {output.error:.1e})" if not output.reason else about
    return Notice("compare-output-varies", f"{what}: {count}{rest}{examples}")


def _say_differences(differences: Sequence[Difference]) -> str:
    parts = [f"{d.place}: {_quote(d.plain)} as it is, {_quote(d.governed)} governed" for d in differences]
    return f"; {'; '.join(parts)}" if parts else ""


def _quote(text: str) -> str:
    return shown(text)[1:-1] if text.strip() else shown(text)  # what is blank would not be seen


def _judge_noise(plain: ArmResult, governed: ArmResult, ratio: Ratio | None) -> list[Notice]:
    found = []
    for result in (governed, plain):
        seconds = [run.seconds for run in result.ended]
        # Too many threads in a quota are unsteady by themselves: the other arm tells of the machine.
        if len(seconds) > 1 and not (result is plain and _throttled(result.ended)):
            share = statistics.stdev(seconds) / statistics.median(seconds)
            if share > NOISY:
                message = f"runs of the arm {result.arm.name!r} differ by {100 * share:.0f} %: is the machine busy?"
                found.append(
                    Notice("compare-noisy", message, "warning", "repeat on an idle machine, or with more --runs")
                )
                break
    if ratio is not None and 1 < len(ratio.rounds) < FEW:
        found.append(Notice("compare-few-rounds", f"{len(ratio.rounds)} rounds tell little", "info", "--runs 5"))
    return found


def _throttled(runs: Sequence[Run]) -> bool:
    return any(run.throttled for run in runs)


def _read_llama(plain: ArmResult, governed: ArmResult) -> list[Notice]:
    """What llama.cpp's own summaries say of the arms, where they printed one."""
    found: list[Notice] = []
    for result in (plain, governed):
        if not result.runs:
            continue
        last = result.runs[-1]
        data = last.output.data if last.output is not None and last.output.data is not None else b""
        reading = read_llama_summary(last.log + "\n" + data.decode("utf-8", "replace"))
        # As explanations: a check judges the comparison.
        found += [
            n._replace(message=f"{result.arm.name}, llama.cpp's summary: {n.message}", level="warning")
            for n in reading.notices
            if n.level != "info"
        ]
    return found
