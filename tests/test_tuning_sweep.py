"""The sweep over thread counts: curves that are known in advance, real calls that sleep, time limits and arguments."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from cgroup_threads.detection import detect
from cgroup_threads.errors import InvalidArgumentError, InvalidThreadsError
from cgroup_threads.governor.core_budget import statistics
from cgroup_threads.governor.limiting import limit_threads
from cgroup_threads.profiles.files import ProfileError
from cgroup_threads.profiles.records import Identity
from cgroup_threads.tuning.counts import sweep_counts
from cgroup_threads.tuning.errors import TuneError
from cgroup_threads.tuning.function import FunctionSubject, name_function
from cgroup_threads.tuning.noise import Verdict
from cgroup_threads.tuning.records import Sample, Task, TuneResult
from cgroup_threads.tuning.sweep import Measured, Terms, sweep
from cgroup_threads.tuning.tuner import conclude, ending, find_period, make_terms, say_given_up, tune
from tests.lab import require
from tests.lab.native import pool_script

CALL = Task("call", "calls")
IDENTITY = Identity("", "", "", 64, None)
CLEAN = Verdict()
NEIGHBOUR = Verdict(cause="neighbours", cores=1.2, neighbour="spinner (process 77)")
Curve = Callable[[int], float]


class Clock:
    """A clock that moves only when something is measured."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Recorded:
    """A subject whose rate at a count is known, with noise from a seed. A call takes ``1 / rate``."""

    title = "recorded"
    pids = (1,)

    def __init__(
        self, curve: Curve, clock: Clock, noise: float = 0.0, seed: int = 0, tasks: Sequence[Task] = (CALL,)
    ) -> None:
        self.curve = curve
        self.clock = clock
        self.noise = noise
        self.random = random.Random(seed)
        self.tasks = tuple(tasks)
        self.calls: list[tuple[str, int, float]] = []
        self.closed = 0

    def measure(self, task: Task, threads: int, seconds: float) -> Sample:
        self.calls.append((task.name, threads, seconds))
        call = 1.0 / self.curve(threads) / self.random.lognormvariate(0.0, self.noise)
        number = max(1, round(seconds / call))
        self.clock.now += number * call
        return Sample(number, number * call, (call,) * number)

    def close(self) -> None:
        self.closed += 1


class Verdicts:
    """Stands in for the meter: says of measurement number k (from 0) what ``say(k, threads)`` says."""

    def __init__(self, say: Callable[[int, int], Verdict] = lambda number, threads: CLEAN) -> None:
        self.say = say
        self.number = -1

    def begin(self, pids: Sequence[int]) -> None:
        assert pids == (1,)
        self.number += 1

    def end(self, pids: Sequence[int], threads: int) -> Verdict:
        return self.say(self.number, threads)


def amdahl(serial: float, rate: float = 50.0) -> Curve:
    return lambda n: rate / (serial + (1 - serial) / n)


def universal(serial: float, crosstalk: float, rate: float = 50.0) -> Curve:
    return lambda n: rate * n / (1 + serial * (n - 1) + crosstalk * n * (n - 1))


def test_the_time_before_the_sweep_counts() -> None:
    clock = Clock()
    measured = sweep(
        Recorded(amdahl(0.93), clock, noise=0.1),
        (1, 2),
        2,
        Terms(15, 1.0, 60.0, 1.0, 0.3),
        Verdicts(),
        lambda done, total, what: None,
        clock,
        began=clock.now - 58.0,
    )
    assert clock.now <= 1002.1
    assert "tune-time-limit" in codes(measured)


def run(
    subject: Recorded,
    counts: Sequence[int] = (1, 2, 3, 4),
    *,
    usable: int = 64,
    meter: Verdicts | None = None,
    **terms: float,
) -> Measured:
    told: list[tuple[int, int]] = []
    options = {"rounds": 6, "seconds": 1.0, "time_limit": 300.0, "confidence": 1.0, "least": 0.3, **terms}
    found = sweep(
        subject,
        counts,
        usable,
        Terms(int(options.pop("rounds")), **options),
        meter or Verdicts(),
        lambda done, total, what: told.append((done, total)),
        subject.clock,
    )
    assert [done for done, _ in told] == list(range(len(told))), "each measurement is told of once"
    assert all(done < total for done, total in told)
    return found


def result_of(measured: Measured, usable: int = 64) -> TuneResult:
    return conclude(measured, "recorded", IDENTITY, detect(affinity=usable), usable)


def codes(found: Measured | TuneResult) -> list[str]:
    return [notice.code for notice in found.notices]


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("serial", [0.0, 0.1, 0.5, 0.9])
def test_the_serial_share_is_found_again(serial: float, seed: int) -> None:
    clock = Clock()
    subject = Recorded(amdahl(serial), clock, noise=0.03, seed=seed)
    result = result_of(run(subject, sweep_counts(64, 64), rounds=15, confidence=0.95))
    assert result.serial_fraction == pytest.approx(serial, abs=0.05)
    assert clock.now - 1000.0 <= 300.0
    exact = amdahl(serial)
    top = max(exact(count) for count in sweep_counts(64, 64))
    assert exact(result.threads) >= 0.95 * top, "3 % below the best, and some noise"
    assert result.confidence > 0


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_peak_past_which_it_gets_slower_is_found(seed: int) -> None:
    curve = universal(0.02, 0.002)  # its peak is at the square root of 490: 22.1
    result = result_of(run(Recorded(curve, Clock(), noise=0.02, seed=seed), sweep_counts(64, 64), rounds=15))
    top = max(curve(count) for count in sweep_counts(64, 64))
    assert curve(result.threads) >= 0.95 * top
    assert result.threads <= 23, "more threads than at the peak are never better"
    fit = result.curves[0].universal
    assert fit is not None
    assert fit.peak == pytest.approx(22.1, rel=0.15)
    assert curve(64) < 0.8 * top, "the curve of this test does not fall"


def test_tasks_are_kept_apart() -> None:
    class Two(Recorded):
        def measure(self, task: Task, threads: int, seconds: float) -> Sample:
            self.curve = amdahl(0.95) if task.name == "decode" else amdahl(0.0)
            return super().measure(task, threads, seconds)

    tasks = (Task("decode", "tokens", "n_threads"), Task("prefill", "tokens", "n_threads_batch"))
    result = result_of(run(Two(amdahl(0), Clock(), noise=0.01, tasks=tasks), usable=4), 4)
    assert [(curve.task.name, curve.recommendation.threads) for curve in result.curves] == [
        ("decode", 2),
        ("prefill", 4),
    ]


def test_rounds_are_interleaved_and_each_begins_with_another_count() -> None:
    subject = Recorded(amdahl(0.5), Clock(), noise=0.01)
    run(subject)
    order = [threads for _, threads, _ in subject.calls]
    assert sorted(order[:4]) == [1, 2, 3, 4], "one warm-up each"
    rounds = [order[start : start + 4] for start in range(4, len(order), 4)]
    assert len(rounds) >= 3
    assert all(sorted(one) == [1, 2, 3, 4] for one in rounds)
    for number, one in enumerate(rounds[:4]):
        step = -1 if number % 2 else 1
        assert [b - a for a, b in itertools.pairwise(one)].count(step) >= 2, "every second one runs backwards"
    firsts = [one[0] for one in rounds[:4]]
    assert sorted(firsts) == sorted(set(firsts))


def test_warm_ups_are_one_call_and_do_not_count() -> None:
    class Cold(Recorded):
        def measure(self, task: Task, threads: int, seconds: float) -> Sample:
            first = threads not in {count for _, count, _ in self.calls}
            sample = super().measure(task, threads, seconds)
            return sample._replace(seconds=100 * sample.seconds) if first else sample

    subject = Cold(amdahl(0.5), Clock())
    measured = run(subject)
    assert [seconds for *_, seconds in subject.calls[:4]] == [0.0] * 4
    assert [point.median for point in measured.points[0]] == pytest.approx([amdahl(0.5)(n) for n in (1, 2, 3, 4)], 0.01)


def test_it_ends_as_soon_as_it_is_sure() -> None:
    sure = run(Recorded(amdahl(0.0), Clock(), noise=0.001), rounds=15, confidence=0.95)
    assert {len(point.rates) for point in sure.points[0]} == {3}
    unsure = run(Recorded(amdahl(0.93), Clock(), noise=0.1), rounds=15, confidence=0.999)
    assert {len(point.rates) for point in unsure.points[0]} == {15}


def test_hopeless_counts_are_measured_once() -> None:
    slow = {1: 10.0, 2: 60.0, 3: 100.0, 4: 35.0}
    subject = Recorded(lambda n: slow[n], Clock(), noise=0.02)
    measured = run(subject, confidence=0.95)
    points = measured.points[0]
    assert len(points[0].rates) == 1, "ten times slower"
    assert 3 <= min(len(point.rates) for point in points[1:]) < 6, "35 is not four times less than 100"
    assert [point.threads for point in points] == [1, 2, 3, 4]
    assert result_of(measured).confidence > 0.9, "a count that is measured once leaves the others' rounds what they are"


def test_bursts_are_marked() -> None:
    measured = run(Recorded(amdahl(0.0), Clock(), noise=0.001), usable=2)
    assert [(point.threads, point.burst) for point in measured.points[0]] == [
        (1, False),
        (2, False),
        (3, True),
        (4, True),
    ]
    assert result_of(measured, 2).threads == 2


def test_the_length_shrinks_where_the_rounds_would_not_fit() -> None:
    clock = Clock()
    subject = Recorded(amdahl(0.93, rate=500), clock, noise=0.1)
    run(subject, range(1, 25), rounds=15, confidence=1.0, time_limit=200.0)
    lengths = [seconds for *_, seconds in subject.calls[24:]]
    assert 0.4 < lengths[0] < 0.7
    assert min(lengths) >= 0.3
    assert clock.now - 1000.0 <= 200.0


@pytest.mark.parametrize("rate", [0.001, 0.004, 0.02])
def test_the_time_limit_holds_where_calls_are_slow(rate: float) -> None:
    clock = Clock()
    measured = run(Recorded(amdahl(0.0, rate), clock, noise=0.01), sweep_counts(16, 16), time_limit=300.0)
    first = 1 / (16 * rate)  # nothing is known before the first call
    assert clock.now - 1000.0 <= max(310.0, 1.05 * first)
    assert "tune-time-limit" in codes(measured)
    assert all(point.rates for point in measured.points[0]), "counts without a figure are left out"
    result = result_of(measured)
    assert result.confidence <= 0.5, "fewer than three rounds"


def test_calls_that_were_given_up_are_told() -> None:
    class Patient(Recorded):
        given_up = (("decode", 4), ("decode", 3), ("decode", 4))

    assert say_given_up(Recorded(amdahl(0), Clock())) == ()
    (notice,) = say_given_up(Patient(amdahl(0), Clock()))
    assert (notice.code, notice.level) == ("tune-given-up", "info")
    assert "decode at 3, decode at 4 threads" in notice.message
    curve = result_of(run(Recorded(amdahl(0), Clock()), (1, 2, 3, 4))).curves[0]._replace(task=Task("decode", "tokens"))
    assert curve.recommendation.threads == 4
    (notice,) = say_given_up(Patient(amdahl(0), Clock()), [curve])
    assert (notice.code, notice.level) == ("tune-given-up", "warning")
    assert "also with the recommended count" in notice.message


def stuck_below(least: int, *names: str) -> Recorded:
    """A subject whose calls never end with fewer threads than ``least``, in the last of its tasks."""

    class Stuck(Recorded):
        def measure(self, task: Task, threads: int, seconds: float) -> Sample:
            sample = super().measure(task, threads, seconds)
            if task != self.tasks[-1] or threads >= least:
                return sample
            self.clock.now += 20.0
            return Sample(1.0, 20.0, (20.0,), stuck=True)

    return Stuck(amdahl(0), Clock(), tasks=[Task(name, "calls") for name in names])


def test_where_no_call_ends_there_is_no_result() -> None:
    subject = stuck_below(3, "call")
    with pytest.raises(TuneError, match="tune, recorded: no call ended within 20 s"):
        run(subject, (1, 2, 3, 4), usable=2)
    assert sorted(threads for _, threads, _ in subject.calls) == [1, 2], "no burst and no other round"


def test_one_count_whose_calls_end_is_a_result() -> None:
    assert result_of(run(stuck_below(2, "call"), (1, 2))).threads == 2


def test_a_task_whose_calls_never_end_has_no_figures() -> None:
    subject = stuck_below(9, "prefill", "decode")
    measured = run(subject, (1, 2))
    assert [task.name for task in measured.tasks] == ["prefill"]
    assert sorted(threads for name, threads, _ in subject.calls if name == "decode") == [1, 2]
    subject.given_up = (("decode", 2), ("decode", 1))  # type: ignore[attr-defined]
    (notice,) = say_given_up(subject, result_of(measured).curves)
    assert (notice.code, notice.level) == ("tune-given-up", "warning")
    assert notice.message == "no call ended, and there are no figures: decode"


def test_a_function_that_never_returns_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cgroup_threads.tuning.child_subject.FIRST_LIMIT", 0.5)
    (tmp_path / "endless_work.py").write_text("import time\ndef work(threads):\n    time.sleep(1000)\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TuneError) as caught:
        tune("endless_work:work", max_threads=2, time_limit=200, progress=False)
    assert str(caught.value) == "tune, endless_work:work: no call ended within 0.5 s"


def test_a_time_limit_longer_than_any_wait_is_one() -> None:
    with ending(Recorded(amdahl(0), Clock()), 1e300):  # whose thread must not fail
        pass


def test_counts_that_were_not_measured_are_named() -> None:
    clock = Clock()
    measured = run(Recorded(amdahl(0.0, 0.01), clock), (1, 2), time_limit=120.0)  # 100 s and 50 s
    assert [point.threads for point in measured.points[0]] == [2]
    notice = next(notice for notice in measured.notices if notice.code == "tune-time-limit")
    assert notice.level == "warning"
    assert "not measured: call at 1" in notice.message


def test_a_subject_that_is_ended_at_the_time_limit_gives_what_is_known() -> None:
    class Ended(Recorded):
        def measure(self, task: Task, threads: int, seconds: float) -> Sample:
            if len(self.calls) == 12:
                self.clock.now = 1300.0
                raise TuneError("recorded", "it was ended by SIGKILL")
            return super().measure(task, threads, seconds)

    measured = run(Ended(amdahl(0.93), Clock(), noise=0.1), rounds=15)
    assert "tune-time-limit" in codes(measured)
    assert {len(point.rates) for point in measured.points[0]} == {2}


HANGING = """
import time
def work(threads):
    time.sleep(0.01 if threads == 2 else 1000)
"""


@pytest.mark.parametrize("target", ["hanging_work:work", ["/bin/sh", "-c", "test {threads} = 2 || exec sleep 1000"]])
def test_children_that_hang_are_ended_at_the_time_limit(
    target: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require(detect().usable() == 2, "another number of usable cores than 2")
    (tmp_path / "hanging_work.py").write_text(HANGING)
    monkeypatch.chdir(tmp_path)
    began = time.monotonic()
    result = tune(target, time_limit=6, progress=False)
    assert time.monotonic() - began < 60  # and not 1000
    assert [point.threads for point in result.points] == [2]
    assert "tune-time-limit" in codes(result)
    assert result.confidence <= 0.5


def test_what_fails_before_the_time_limit_is_an_error() -> None:
    class Failing(Recorded):
        def measure(self, task: Task, threads: int, seconds: float) -> Sample:
            raise TuneError("recorded", "out of order")

    with pytest.raises(TuneError, match="tune, recorded: out of order"):
        run(Failing(amdahl(0), Clock()))


@pytest.mark.parametrize("sample", [Sample(0, 1.0), Sample(1, 0.0), Sample(1, float("nan")), Sample(-1, 1.0)])
def test_samples_that_cannot_be_are_an_error(sample: Sample) -> None:
    class Odd(Recorded):
        def measure(self, task: Task, threads: int, seconds: float) -> Sample:
            return sample

    with pytest.raises(TuneError):
        run(Odd(amdahl(0), Clock()))


def test_disturbed_rounds_are_left_out_and_repeated() -> None:
    class Halved(Recorded):
        def measure(self, task: Task, threads: int, seconds: float) -> Sample:
            sample = super().measure(task, threads, seconds)
            return sample._replace(units=sample.units / 2) if self.disturbed(threads) else sample

        def disturbed(self, threads: int) -> bool:
            return threads == 3 and sum(count == 3 for _, count, _ in self.calls) in (2, 3)

    subject = Halved(amdahl(0.9), Clock())
    meter = Verdicts(lambda number, threads: NEIGHBOUR if subject.disturbed(threads) else CLEAN)
    measured = run(subject, meter=meter, confidence=1.0)
    three = measured.points[0][2]
    assert three.spoilt == 2
    assert len(three.rates) >= 3
    assert min(three.rates) == pytest.approx(amdahl(0.9)(3), rel=0.05)
    assert measured.doubtful == (False,)
    assert codes(measured) == ["tune-noisy"]
    notice = measured.notices[0]
    assert (notice.level, "2 of " in notice.message) == ("info", True)
    assert "1.2 cores" in notice.message
    assert "spinner (process 77)" in notice.message


def test_noise_that_never_ends_is_repeated_twice_and_its_figures_used_with_a_warning() -> None:
    subject = Recorded(amdahl(0.0), Clock(), noise=0.001)
    measured = run(subject, meter=Verdicts(lambda number, threads: NEIGHBOUR), rounds=4)
    assert {len(point.rates) for point in measured.points[0]} == {8}
    assert {point.spoilt for point in measured.points[0]} == {0}, "they were not thrown away"
    assert measured.doubtful == (True,)
    assert [(notice.code, notice.level) for notice in measured.notices] == [("tune-noisy", "warning")]
    assert "call at 1, 2, 3, 4 threads" in measured.notices[0].message
    result = result_of(measured, 4)
    assert result.threads == 4
    assert result.confidence == 0.5


@pytest.mark.parametrize("clean_rounds", [1, 2, 3])
def test_a_neighbour_in_mid_run_is_told_and_changes_nothing(clean_rounds: int) -> None:
    """Under it, four threads are slower than one: figures with it would recommend 1."""

    class Disturbed(Recorded):
        def measure(self, task: Task, threads: int, seconds: float) -> Sample:
            sample = super().measure(task, threads, seconds)
            late = len(self.calls) > 4 * (1 + clean_rounds)
            return sample._replace(units=sample.units / 20**threads) if late else sample

    without = result_of(run(Recorded(amdahl(0.3), Clock(), noise=0.05)), 4)
    subject = Disturbed(amdahl(0.3), Clock(), noise=0.05)
    meter = Verdicts(lambda number, threads: NEIGHBOUR if number >= 4 * clean_rounds else CLEAN)
    measured = run(subject, meter=meter, confidence=1.0)
    result = result_of(measured, 4)
    assert result.threads == without.threads == 4
    if clean_rounds == 3 and len(subject.calls) == 16:
        return  # it was sure before anybody came
    notice = next(notice for notice in result.notices if notice.code == "tune-neighbour")
    assert f"in round {clean_rounds + 1} of " in notice.message
    assert "spinner (process 77)" in notice.message
    assert result.confidence <= (0.5 if clean_rounds < 3 else 1.0)
    assert ("fewer than 3 undisturbed rounds" in notice.message) == (clean_rounds < 3)


def test_throttled_periods_are_summed() -> None:
    verdict = Verdict(periods=10, throttled=4)
    measured = run(Recorded(amdahl(0.0), Clock()), meter=Verdicts(lambda number, threads: verdict))
    assert {point.throttled for point in measured.points[0]} == {0.4}
    assert {point.throttled for point in run(Recorded(amdahl(0.0), Clock())).points[0]} == {None}


def test_real_calls_that_sleep() -> None:
    """Half of a call is serial; sleeping needs no CPU, so that eight threads are none too many."""

    def work(threads: int) -> None:
        time.sleep(0.1 + 0.1 / threads)  # a busy machine adds some milliseconds

    subject = FunctionSubject(work)
    meter = Verdicts()
    meter.begin = lambda pids: None  # type: ignore[method-assign]
    terms = Terms(rounds=5, seconds=0.2, time_limit=60.0, confidence=0.95, least=0.05)
    result = result_of(sweep(subject, (1, 2, 4, 8), 8, terms, meter, lambda done, total, what: None), 8)
    assert result.serial_fraction == pytest.approx(0.5, abs=0.15)
    assert result.threads in (4, 8)  # a tenth apart
    assert [point.median for point in result.points] == pytest.approx([5, 6.67, 8, 8.89], rel=0.25)


def test_tune_measures_a_function_here() -> None:
    seen: set[int] = set()

    def work(threads: int) -> None:
        seen.add(threads)
        time.sleep(0.003 + 0.003 / threads)

    told: list[str] = []
    result = tune(work, rounds=3, seconds=0.05, time_limit=30, progress=lambda done, total, what: told.append(what))
    limits = detect()
    assert seen == set(sweep_counts(limits.width, limits.usable()))
    assert result.title.endswith("work")
    assert (result.cpus, result.identity.usable) == (limits.width, limits.usable())
    assert result.threads in seen
    assert result.elapsed > 0
    assert told[0].startswith("call, ")
    assert [point.threads for point in result.points] == sorted(seen)


def test_the_limit_of_counts_is_kept() -> None:
    seen: set[int] = set()
    result = tune(lambda threads: seen.add(threads), max_threads=1, rounds=3, seconds=0.01, progress=False)
    assert seen == {1}
    assert result.threads == 1


def test_a_function_holds_no_cores_and_is_not_measured_inside_a_lease() -> None:
    """A lease may be of fewer threads than the count that is to be measured."""
    seen: list[tuple[int, int]] = []

    def work(threads: int) -> None:
        seen.append((threads, statistics().active))

    subject = FunctionSubject(work)
    subject.measure(CALL, 1, 0.0)
    subject.measure(CALL, 4000, 0.0)
    assert seen == [(1, 0), (4000, 0)]
    with limit_threads(1), pytest.raises(TuneError, match="outside of limit_threads"):
        subject.measure(CALL, 2, 0.0)


def test_native_pools_follow_the_count() -> None:
    """``pool_script`` has four usable cores, and libraries at three threads."""
    script = """
import numpy, threadpoolctl
from cgroup_threads.tuning.tuner import tune
counts = set()
a = numpy.ones((64, 64))
def work(threads):
    a @ a
    counts.update((threads, pool["num_threads"]) for pool in threadpoolctl.threadpool_info())
result = tune(work, rounds=3, seconds=0.05, time_limit=30, progress=False)
seen["counts"] = sorted(counts)
seen["measured"] = [point.threads for point in result.points]
"""
    seen = pool_script(script, modules=("numpy",))
    assert seen["counts"] == [[count, min(count, 3)] for count in seen["measured"]]


def test_what_a_function_raises_is_an_error_of_the_tuning() -> None:
    def work(threads: int) -> None:
        raise KeyError("weights")

    with pytest.raises(TuneError, match="KeyError") as caught:
        tune(work, progress=False)
    assert isinstance(caught.value.__cause__, KeyError)


def test_an_interrupt_passes_and_nothing_is_left() -> None:
    def work(threads: int) -> None:
        raise KeyboardInterrupt

    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        tune(work, progress=False)
    assert threading.active_count() == before
    from cgroup_threads.governor.core_budget import statistics

    assert statistics().active == 0


def test_the_subject_is_closed_on_every_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    subjects: list[Recorded] = []

    def make(target: object, **options: object) -> Recorded:
        class Failing(Recorded):
            def measure(self, task: Task, threads: int, seconds: float) -> Sample:
                assert isinstance(target, BaseException)
                raise target

        subjects.append(Failing(amdahl(0), Clock()))
        return subjects[-1]

    monkeypatch.setattr("cgroup_threads.tuning.subjects.make_subject", make)
    for error in (KeyboardInterrupt(), SystemExit(3), TuneError("x", "y"), ZeroDivisionError()):
        with pytest.raises(type(error)):
            tune(error, progress=False)
    with pytest.raises(InvalidArgumentError):
        tune(TuneError("x", "y"), tasks=["decode"])
    with pytest.raises(InvalidArgumentError, match="save"):
        tune(TuneError("x", "y"), save=True)
    assert [subject.closed for subject in subjects] == [1] * 6


def test_a_place_where_nothing_can_be_saved_is_told_before_it_measures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Known(Recorded):
        identity = Identity("gguf llama 0123456789abcdef", "library 1.0", "cpu", 2, None)

        def measure(self, task: Task, threads: int, seconds: float) -> Sample:
            raise AssertionError("nothing is measured")

    subject = Known(amdahl(0), Clock())
    monkeypatch.setattr("cgroup_threads.tuning.subjects.make_subject", lambda target: subject)
    (tmp_path / "file").touch()
    with pytest.raises(ProfileError, match="Not a directory"):
        tune("x", save=tmp_path / "file", progress=False)
    assert subject.closed == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rounds", 2),
        ("rounds", 3.0),
        ("rounds", True),
        ("seconds", 0),
        ("seconds", float("nan")),
        ("seconds", float("inf")),
        ("seconds", "1"),
        ("time_limit", -1),
        ("time_limit", None),
        ("time_limit", 10**400),
        ("confidence", 0),
        ("confidence", 1.01),
        ("confidence", True),
        ("tasks", ["decode"]),
        ("tasks", []),
        ("tasks", "call"),
        ("save", True),
        ("save", ""),
    ],
)
def test_arguments_that_cannot_be(name: str, value: object) -> None:
    def work(threads: int) -> None:
        raise AssertionError("nothing is measured")

    with pytest.raises(InvalidArgumentError) as caught:
        tune(work, progress=False, **{name: value})  # type: ignore[arg-type]
    assert caught.value.argument == name


@pytest.mark.parametrize("value", [0, -1, True, 1.0, "2"])
def test_counts_that_cannot_be(value: object) -> None:
    with pytest.raises(InvalidThreadsError):
        tune(print, max_threads=value)  # type: ignore[arg-type]


def test_functions_that_cannot_be_measured() -> None:
    async def coroutine(threads: int) -> None: ...

    def without() -> None: ...

    def two(threads: int, other: int) -> None: ...

    class Object:
        async def __call__(self, threads: int) -> None: ...

    for target in (coroutine, without, two, Object()):
        with pytest.raises(InvalidArgumentError, match="target"):
            FunctionSubject(target)  # type: ignore[arg-type]
    assert FunctionSubject(print).tasks == (CALL,)
    assert name_function(without).endswith(".<locals>.without")


def test_a_quota_makes_measurements_last_some_of_its_periods() -> None:
    limits = detect()
    level = limits.levels[0]._replace(quota=1.0, raw="200000 200000") if limits.levels else None
    if level is None:
        pytest.skip("no cgroup here")
    limited = limits._replace(quota=1.0, levels=(level,))
    assert find_period(limited) == pytest.approx(0.2)
    terms = make_terms(15, 0.05, 300, 0.95, limited)
    assert [terms.least, terms.seconds] == pytest.approx([0.6, 0.6])
    free = make_terms(15, 0.05, 300, 0.95, limits._replace(quota=None))
    assert (free.least, free.seconds) == (0.05, 0.05)
    assert make_terms(15, 1.0, 300, 0.95, limits._replace(quota=None)).least == 0.1
