"""The user's variables against the plan's."""

from __future__ import annotations

import pytest

from cgroup_threads.conflicts import parse_cpus
from cgroup_threads.planning import decide
from cgroup_threads.precedence import Decision, settle
from cgroup_threads.settings import read_settings
from tests.test_planning import limits

FOLLOWERS = ("MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "BLIS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
OWN = ("VECLIB_MAXIMUM_THREADS", "NUMBA_NUM_THREADS", "OPENCV_FOR_THREADS_NUM", "TF_NUM_INTRAOP_THREADS")


def settled(usable: int, user: dict[str, str], *, cpus: int = 16, **kwargs: object) -> Decision:
    settings = read_settings(user)
    plan = decide(limits(cpus, usable if usable < cpus else None), settings)
    return settle(plan, user, settings, host_cpus=cpus, **kwargs)  # type: ignore[arg-type]  # passed on as given


def codes(decision: Decision) -> list[str]:
    return [notice.code for notice in decision.notices]


def test_only_what_is_unset_is_set() -> None:
    user = {"OMP_NUM_THREADS": "3", "TF_NUM_INTEROP_THREADS": "2", "RAYON_NUM_THREADS": "2", "PATH": "/bin"}
    decision = settled(4, user)
    assert not set(user) & set(decision.set)
    assert [(kept.name, kept.value, kept.threads) for kept in decision.kept] == [
        ("OMP_NUM_THREADS", "3", 3),
        ("RAYON_NUM_THREADS", "2", 2),
        ("TF_NUM_INTEROP_THREADS", "2", 2),
    ]
    assert codes(decision) == []


@pytest.mark.parametrize("blank", ["", " "])
def test_blank_is_replaced_and_mentioned(blank: str) -> None:
    decision = settled(4, {"OMP_NUM_THREADS": blank})
    assert decision.set["OMP_NUM_THREADS"] == "4"
    assert decision.kept == ()
    assert codes(decision) == ["variable-blank"]


@pytest.mark.parametrize(
    ("omp", "number"),
    [("4,3,2", "4"), (" 5 , 1 ", "5"), ("1", "1"), ("8", "8"), ("512 ,1024", "8"), ("99999999999", "8")],
)
def test_followers_of_omp_num_threads_get_the_smaller_number(omp: str, number: str) -> None:
    decision = settled(8, {"OMP_NUM_THREADS": omp})
    assert {decision.set[name] for name in FOLLOWERS} == {number}
    assert {decision.set[name] for name in OWN} == {"8"}
    assert decision.kept[0].value == omp


@pytest.mark.parametrize("omp", ["2,", ",2", "0,2", "2,0", "500m", "1.0", "0", "2,x"])
def test_a_malformed_omp_num_threads_is_kept_but_not_followed(omp: str) -> None:
    decision = settled(8, {"OMP_NUM_THREADS": omp})
    assert {decision.set[name] for name in FOLLOWERS} == {"8"}
    assert (decision.kept[0].value, decision.kept[0].state, decision.kept[0].threads) == (omp, "malformed", None)
    assert codes(decision) == ["variable-malformed"]


def test_a_launchers_one_is_kept_and_diagnosed() -> None:
    decision = settled(10, {"OMP_NUM_THREADS": "1", "SLURM_CPUS_PER_TASK": "10"})
    assert "OMP_NUM_THREADS" not in decision.set
    assert codes(decision) == ["variable-wasteful"]
    assert "CGROUP_THREADS_OVERRIDE=1" in decision.notices[0].fix
    forced = settled(10, {"OMP_NUM_THREADS": "1", "CGROUP_THREADS_OVERRIDE": "1"})
    assert forced.set["OMP_NUM_THREADS"] == forced.set["MKL_NUM_THREADS"] == "10"
    assert (forced.kept[0].state, forced.kept[0].replaced) == ("wasteful", "10")
    assert codes(forced) == ["variable-replaced"]


def test_override_replaces_valid_and_malformed_values_but_not_how_to_wait() -> None:
    user = {"TF_NUM_INTRAOP_THREADS": "3", "NUMBA_NUM_THREADS": "x", "GOMP_SPINCOUNT": "7", "OMP_THREAD_LIMIT": "2"}
    decision = settled(4, user | {"CGROUP_THREADS_OVERRIDE": "1"})
    assert (decision.set["TF_NUM_INTRAOP_THREADS"], decision.set["NUMBA_NUM_THREADS"]) == ("4", "4")
    assert not {"GOMP_SPINCOUNT", "OMP_THREAD_LIMIT"} & set(decision.set)
    assert decision.set["OMP_NUM_THREADS"] == "2"
    limited = settled(4, user | {"CGROUP_THREADS_OVERRIDE": "1", "CGROUP_THREADS_OMP_LIMIT": "1"})
    assert (limited.set["OMP_THREAD_LIMIT"], limited.set["OMP_NUM_THREADS"]) == ("4", "4")


def test_numexpr_number_never_exceeds_its_maximum() -> None:
    above = settled(2, {"NUMEXPR_NUM_THREADS": "8"})
    assert above.set["NUMEXPR_MAX_THREADS"] == "8"
    assert codes(above) == ["variable-harmful"]
    assert settled(4, {"NUMEXPR_MAX_THREADS": "2"}).set["NUMEXPR_NUM_THREADS"] == "2"
    assert settled(4, {"NUMEXPR_MAX_THREADS": "junk"}).set["NUMEXPR_NUM_THREADS"] == "4"
    assert settled(4, {"NUMEXPR_NUM_THREADS": "junk"}).set["NUMEXPR_MAX_THREADS"] == "4"
    assert settled(4, {"NUMEXPR_NUM_THREADS": "99999999999"}).set["NUMEXPR_MAX_THREADS"] == "4"
    both = settled(4, {"NUMEXPR_NUM_THREADS": "4", "NUMEXPR_MAX_THREADS": "2"})
    assert [(notice.code, notice.level) for notice in both.notices] == [("variables-disagree", "problem")]


def test_spinning_is_left_to_a_user_who_said_how_to_wait() -> None:
    assert settled(2, {}).set["GOMP_SPINCOUNT"] == "2000"
    assert settled(2, {"GOMP_SPINCOUNT": " ", "OMP_WAIT_POLICY": ""}).set["GOMP_SPINCOUNT"] == "2000"
    assert "GOMP_SPINCOUNT" not in settled(2, {"OMP_WAIT_POLICY": "active"}).set
    assert "GOMP_SPINCOUNT" not in settled(2, {"GOMP_SPINCOUNT": "infinite"}).set
    assert "GOMP_SPINCOUNT" not in settled(16, {}).set


def test_omp_thread_limit_leaves_room_for_the_user_but_not_for_nonsense() -> None:
    opted = {"CGROUP_THREADS_OMP_LIMIT": "1"}
    assert settled(2, opted | {"OMP_NUM_THREADS": "6"}).set["OMP_THREAD_LIMIT"] == "6"
    assert settled(2, opted | {"OMP_NUM_THREADS": "99999999999"}).set["OMP_THREAD_LIMIT"] == "2"
    assert settled(2, opted | {"CGROUP_THREADS_MAX_CORES": "5"}).set["OMP_THREAD_LIMIT"] == "5"
    assert "OMP_THREAD_LIMIT" not in settled(2, opted | {"OMP_THREAD_LIMIT": "9"}).set


def test_a_users_omp_thread_limit_caps_and_warns_of_the_hang() -> None:
    decision = settled(8, {"OMP_NUM_THREADS": "8", "OMP_THREAD_LIMIT": "3"})
    assert [(kept.name, kept.threads) for kept in decision.kept] == [("OMP_NUM_THREADS", 3), ("OMP_THREAD_LIMIT", 3)]
    assert decision.set["MKL_NUM_THREADS"] == "3"
    (notice,) = decision.notices
    assert (notice.code, notice.level) == ("omp-thread-limit", "warning")
    assert notice.message == "OMP_THREAD_LIMIT=3 kept, below OMP_NUM_THREADS=8: OpenMP teams get 3"
    assert "hangs" in notice.fix
    alone = settled(8, {"OMP_THREAD_LIMIT": "3"})
    assert alone.set["OMP_NUM_THREADS"] == alone.set["MKL_NUM_THREADS"] == "3"
    wide = settled(8, {"OMP_THREAD_LIMIT": "30"})
    assert [(notice.code, notice.level) for notice in wide.notices] == [("omp-thread-limit", "info")]
    assert wide.set["OMP_NUM_THREADS"] == "8"


def test_disagreeing_variables_are_explained() -> None:
    decision = settled(8, {"OMP_NUM_THREADS": "4", "MKL_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "4"})
    assert codes(decision) == ["variables-disagree"]
    assert decision.notices[0].message.startswith("MKL_NUM_THREADS=2 overrides OMP_NUM_THREADS=4 for MKL; torch")
    decision = settled(8, {"OMP_NUM_THREADS": "3", "OPENBLAS_NUM_THREADS": "2"})
    assert decision.notices[0].message.startswith("OPENBLAS_NUM_THREADS=2 overrides OMP_NUM_THREADS=3 for OpenBLAS")


def test_a_pool_sized_for_a_resize_is_not_harmful() -> None:
    user = {"NUMBA_NUM_THREADS": "6", "OMP_NUM_THREADS": "6"}
    assert codes(settled(2, user)) == ["variable-harmful", "variable-harmful"]
    decision = settled(2, user | {"CGROUP_THREADS_MAX_CORES": "6"})
    assert [kept.state for kept in decision.kept] == ["harmful", "fine"]


def test_frozen_variables_are_neither_set_nor_replaced() -> None:
    frozen = ("NUMBA_NUM_THREADS",)
    assert "NUMBA_NUM_THREADS" not in settled(4, {}, frozen=frozen).set
    user = {"NUMBA_NUM_THREADS": "2", "CGROUP_THREADS_OVERRIDE": "1"}
    decision = settled(4, user, frozen=frozen)
    assert "NUMBA_NUM_THREADS" not in decision.set
    assert decision.kept[0].replaced == ""


def test_generic_names_are_for_children_alone() -> None:
    generic = {"NPROC", "N_THREADS", "N_THREADS_BATCH", "LLAMA_ARG_THREADS", "PYTHON_CPU_COUNT", "LOKY_MAX_CPU_COUNT"}
    assert not generic & set(settled(4, {}).set)
    child = settled(4, {"N_THREADS": "9"}, stages=("import", "opt-in", "child"))
    assert generic - set(child.set) == {"N_THREADS"}
    assert settled(4, {"N_THREADS": "9"}).kept == ()
    assert settled(4, {}, also=["NPROC"]).set["NPROC"] == "4"


def test_a_torchrun_rank_gets_what_torchrun_gives() -> None:
    rank = {"LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none"}
    decision = settled(8, rank)
    assert {decision.set[name] for name in ("OMP_NUM_THREADS", *FOLLOWERS)} == {"1"}
    assert decision.set["NUMBA_NUM_THREADS"] == "4"
    assert codes(decision) == ["torchrun-rank"]
    assert settled(2, rank).notices == ()
    for decided in (
        {"CGROUP_THREADS_WORKERS": "2"},
        {"CGROUP_THREADS_OVERRIDE": "1"},
        {"LOCAL_WORLD_SIZE": "1"},
        {"TORCHELASTIC_RUN_ID": ""},
    ):
        assert settled(8, rank | decided).set["OMP_NUM_THREADS"] in ("4", "8")
    assert "OMP_NUM_THREADS" not in settled(8, rank | {"OMP_NUM_THREADS": "3"}).set


@pytest.mark.parametrize(
    ("name", "text"), [("GOMP_CPU_AFFINITY", "0-3"), ("OMP_PLACES", "{0:4}"), ("VLLM_CPU_OMP_THREADS_BIND", "0-1|4-5")]
)
def test_bindings_outside_the_mask_are_reported(name: str, text: str) -> None:
    decision = settled(4, {name: text}, cpus=4, affinity=range(4, 8))
    assert codes(decision) == ["binding-outside-mask"]
    assert "0, 1" in decision.notices[0].message
    assert codes(settled(4, {name: text}, cpus=4, affinity=range(8))) == []


def test_binding_of_every_process_to_the_first_cpus_is_reported() -> None:
    user = {"OMP_PROC_BIND": "true", "OMP_NUM_THREADS": "1"}
    decision = settled(8, user, cpus=8, affinity=range(8))
    assert "binding-shared" in codes(decision)
    assert "binding-shared" not in codes(settled(8, user | {"OMP_PLACES": "cores"}, cpus=8, affinity=range(8)))
    assert "binding-shared" not in codes(settled(8, {"OMP_PROC_BIND": "false"}, cpus=8, affinity=range(8)))
    assert "binding-shared" not in codes(settled(8, {"OMP_PROC_BIND": "close"}, cpus=8, affinity=range(8)))


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("0 3 1-2 4-15:2", {0, 1, 2, 3, 4, 6, 8, 10, 12, 14}),
        ("{0,1},{2:2}", {0, 1, 2, 3}),
        ("{0:2:4}", {0, 4}),
        ("0-1|6-7", {0, 1, 6, 7}),
        ("", set()),
        ("cores(4)", None),
        ("{0:4}:4:4", None),
        ("auto", None),
        ("5-", None),
        ("0-99999999", None),
        ("0-3:0", {0, 1, 2, 3}),
        ("0" * 1001, None),
        ("\udcff", None),
    ],
)
def test_cpus_of_a_binding(text: str, cpus: set[int] | None) -> None:
    assert parse_cpus(text) == cpus
