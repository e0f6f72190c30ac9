"""A governed ``Llama``: one lease of the core budget for each native computation, whatever path leads there."""

from __future__ import annotations

from typing import Any

import pytest

from cgroup_threads.models.llama_leases import resize
from tests.lab.models import HELD, gemma_gguf, llama_script

# The lowest calls that Python sees are watched: what each computes with, and what the budget has lent meanwhile.
WATCH = """
import ctypes, gc, os, pickle, sys, tempfile, threading, time, types, weakref
import cgroup_threads as ct
from cgroup_threads.models.governing import govern, release
from cgroup_threads.models.llama_leases import governors
import llama_cpp
from llama_cpp import llama_cpp as native
calls = []
def watch(name):
    function = getattr(native, name)
    def watched(ctx, batch):
        now = ct.statistics()
        calls.append((batch.n_tokens, native.llama_n_threads(ctx), native.llama_n_threads_batch(ctx), now.leased))
        return function(ctx, batch)
    setattr(native, name, watched)
watch("llama_decode"); watch("llama_encode")
def waiting():
    deadline = time.monotonic() + 30
    while not ct.statistics().waiting and time.monotonic() < deadline:
        time.sleep(0.001)
    return ct.statistics().waiting
def leases(work):
    calls.clear()
    before = ct.statistics().granted
    work()
    return ct.statistics().granted - before
def live(llm):
    return [native.llama_n_threads(llm._ctx.ctx), native.llama_n_threads_batch(llm._ctx.ctx)]
def attributes(llm):
    return [llm.n_threads, llm.n_threads_batch, llm.context_params.n_threads, llm.context_params.n_threads_batch]
"""


def script(body: str, **environ: str) -> Any:
    """``body`` in a process of its own whose budget is 2 cores."""
    return llama_script(
        WATCH + HELD + body, **{"CGROUP_THREADS_CORES": "2", "CGROUP_THREADS_SCOPE": "process", **environ}
    )


GEMMA = "options = {'n_ctx': 128, 'n_batch': 64, 'verbose': False}\n"


def gemma_script(body: str, **environ: str) -> Any:
    return script(f"GEMMA = {gemma_gguf()!r}\n" + GEMMA + body, **environ)


@pytest.mark.parametrize(
    ("present", "leased", "top", "expected"),
    [
        (8, 8, 8, 8),
        (8, 5, 8, 5),  # shrinks at once
        (5, 1, 8, 1),
        (5, 6, 8, 5),  # grows to twice its size
        (3, 6, 8, 6),
        (5, 8, 8, 8),  # or to the top
        (1, 2, 8, 2),
        (4, 2, 2, 2),
    ],
)
def test_hysteresis(present: int, leased: int, top: int, expected: int) -> None:
    assert resize(present, leased, top) == expected


def test_each_path_takes_one_lease_for_each_native_call() -> None:
    """One-token calls have ``n_threads=1``, longer ones ``n_threads_batch=2``: what they lease and compute with."""
    body = """
llm = ct.create_llama(GEMMA, n_threads=1, n_threads_batch=2, chat_format="gemma", **options)
found = {}
def path(name, work):
    granted = leases(work)
    kinds = sorted({(min(tokens, 2), *rest) for tokens, *rest in calls})
    found[name] = [granted == len(calls), len(calls) > 3, kinds]
message = [{"role": "user", "content": "Write a story about a town by the sea."}]
path("completion", lambda: llm("The capital of France is", max_tokens=5, temperature=0))
path("chat", lambda: llm.create_chat_completion(message, max_tokens=5, temperature=0))
path("stream", lambda: list(llm("Once upon a time there", max_tokens=5, temperature=0, stream=True)))
path("generate", lambda: [token for token, _ in zip(llm.generate(llm.tokenize(b"one two"), temp=0.0), range(5))])
def evaluate():
    llm.reset()
    llm.eval(llm.tokenize(b"a b c d"))
    state = llm.save_state()
    llm.eval([5]); llm.eval([6])
    llm.load_state(state)
    llm.eval([7])
path("state", evaluate)
show(found)
"""
    (found,) = gemma_script(body)
    assert set(found) == {"completion", "chat", "stream", "generate", "state"}
    for name, path in found.items():
        assert path == [True, True, [[1, 1, 1, 1], [2, 2, 2, 2]]], name


def test_speculative_decoding_leases_for_each_batch_of_drafts() -> None:
    body = """
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding
llm = ct.create_llama(GEMMA, n_threads=1, draft_model=LlamaPromptLookupDecoding(num_pred_tokens=4), **options)
text = "one two three four five one two three four five one two three"
granted = leases(lambda: llm(text, max_tokens=12, temperature=0))
drafted = [call for call in calls[1:] if call[0] > 1]
show(granted == len(calls), len(drafted) > 0, all(call[1:] == (2, 2, 2) for call in drafted))
"""
    assert gemma_script(body) == [True, True, True]


def test_embedding_and_encoding() -> None:
    body = """
llm = ct.create_llama(PATH, n_threads=1, **COMMON)
granted = leases(lambda: llm.create_embedding(["hello", "more words than one", "bye"]))
found = [granted == len(calls), len(calls), sorted({call[1:] for call in calls})]
llm._batch.reset()
llm._batch.add_sequence([2, 5, 6, 3], 0, False)
show(found, leases(lambda: llm._ctx.encode(llm._batch)), calls)
"""
    embedding, granted, calls = script(body)
    assert embedding == [True, embedding[1], [[2, 2, 2]]]
    assert embedding[1] >= 1
    assert granted == 1
    assert calls[0] == [4, 2, 2, 2]


# In the place of libmtmd, which needs a model of pictures: a "picture" is four tokens, decoded by one native call.
PICTURES = '''
MODULE = """
import ctypes
from llama_cpp import llama_cpp as native
MTMD_INPUT_CHUNK_TYPE_TEXT, MTMD_INPUT_CHUNK_TYPE_IMAGE, MTMD_INPUT_CHUNK_TYPE_AUDIO = 0, 1, 2
mtmd_bitmap_p_ctypes = ctypes.c_void_p
class mtmd_input_text(ctypes.Structure):
    _fields_ = [("text", ctypes.c_char_p), ("text_len", ctypes.c_size_t), ("add_special", ctypes.c_bool),
                ("parse_special", ctypes.c_bool)]
class Parameters: pass
def mtmd_context_params_default(): return Parameters()
def mtmd_init_from_file(path, model, parameters): return 1
def mtmd_support_vision(ctx): return True
def mtmd_free(ctx): pass
def mtmd_default_marker(): return b"<picture>"
def mtmd_helper_bitmap_init_from_buf(ctx, buffer, length, placeholder): return 1
def mtmd_bitmap_free(bitmap): pass
def mtmd_input_chunks_init(): return 1
def mtmd_input_chunks_free(chunks): pass
def mtmd_tokenize(ctx, chunks, text, bitmaps, number): return 0
def mtmd_input_chunks_size(chunks): return 2
def mtmd_input_chunks_get(chunks, index): return index + 1
def mtmd_input_chunk_get_type(chunk): return chunk - 1
def mtmd_input_chunk_get_n_tokens(chunk): return 4
def mtmd_input_chunk_get_tokens_text(chunk, number):
    number._obj.value = 3
    return (ctypes.c_int32 * 3)(2, 100, 200)
def mtmd_helper_eval_chunk_single(ctx, lctx, chunk, n_past, seq_id, n_batch, logits_last, new_n_past):
    batch = native.llama_batch_init(4, 0, 1)
    batch.n_tokens = 4
    for index in range(4):
        batch.token[index], batch.pos[index], batch.logits[index] = 300 + index, n_past.value + index, index == 3
        batch.seq_id[index][0], batch.n_seq_id[index] = 0, 1
    result = native.llama_decode(lctx, batch)
    native.llama_batch_free(batch)
    new_n_past._obj.value = n_past.value + 4
    return result
"""
directory = tempfile.mkdtemp()
with open(os.path.join(directory, "mtmd_cpp.py"), "w") as file:
    file.write(MODULE)
llama_cpp.__path__.insert(0, directory)
message = [{"role": "user", "content": [{"type": "image_url", "image_url": "data:image/png;base64,AAAA"},
                                        {"type": "text", "text": "What is it?"}]}]
def ask(llm):
    leases(lambda: llm.create_chat_completion(message, max_tokens=3, temperature=0))
    return calls
def handler():
    from llama_cpp.llama_chat_format import Llava15ChatHandler
    return Llava15ChatHandler(clip_model_path=GEMMA, verbose=False)
'''


@pytest.mark.parametrize("order", ["module first", "model first"])
def test_pictures_take_a_lease(order: str) -> None:
    make = ["llm = ct.create_llama(GEMMA, n_threads=1, **options)\n", "eyes = handler()\n"]
    body = (
        PICTURES
        + "".join(make if order == "model first" else reversed(make))
        + """
llm.chat_handler = eyes
granted = leases(lambda: llm.create_chat_completion(message, max_tokens=3, temperature=0))
found = [granted == len(calls), [call for call in calls if call[0] == 4], sum(call[0] == 1 for call in calls) >= 2]
release(llm)
show(*found, leases(lambda: llm.create_chat_completion(message, max_tokens=3, temperature=0)))
"""
    )
    assert gemma_script(body) == [True, [[4, 2, 2, 2]], True, 0]


def test_pictures_of_an_ungoverned_model_are_let_through() -> None:
    body = """
governed = ct.create_llama(GEMMA, **options)
plain = llama_cpp.Llama(GEMMA, chat_handler=handler(), **options)
granted = leases(lambda: plain.create_chat_completion(message, max_tokens=3, temperature=0))
show(granted, [call[0] for call in calls if call[0] == 4], vars(plain._ctx).keys() & {"decode", "encode"} == set())
"""
    assert gemma_script(PICTURES + body) == [0, [4], True]


def test_without_libmtmd_its_import_fails_as_before() -> None:
    body = """
def error():
    sys.modules.pop("llama_cpp.mtmd_cpp", None)
    try:
        import llama_cpp.mtmd_cpp
    except Exception as error:
        return [type(error).__name__, str(error)]
    return "imported"
os.environ["MTMD_CPP_LIB"] = "/nowhere"
before = error()
ct.create_llama(PATH, **COMMON)
show(before == error(), before, codes())
"""
    same, before, codes = script(body)
    assert same
    assert before[0] == "FileNotFoundError"
    assert codes == ["llama-threads-filled"] or codes == []


def test_a_generation_shrinks_and_grows_between_tokens() -> None:
    body = """
llm = ct.create_llama(GEMMA, **options)
def threads():
    llm.eval([100])
    return list(calls[-1][1:3])
llm.eval(llm.tokenize(b"one two three"))
alone = threads()
with Held(1):
    beside = threads()
    before = attributes(llm)
    state = llm.__getstate__()
    copied = pickle.loads(pickle.dumps(llm))
    pickled = [counts(copied), state["n_threads"], state["n_threads_batch"], "decode" in vars(copied._ctx)]
for tokens in range(1, 12):  # it follows within some tokens
    after = threads()
    if after == [2, 2]:
        break
show(alone, beside, before, pickled, after, sum(call[3] > 2 for call in calls), ct.statistics().overcommitted)
"""
    alone, beside, before, pickled, after, above, overcommitted = gemma_script(body)
    assert alone == [2, 2]
    assert beside == [1, 1]
    assert before == [2, 2, 2, 2]
    assert pickled == [[2, 2], 2, 2, False]
    assert after == [2, 2]
    assert (above, overcommitted) == (0, 0)


def test_a_call_waits_for_cores() -> None:
    body = """
llm = ct.create_llama(PATH, **COMMON)
with Held(2):
    thread = threading.Thread(target=llm.embed, args=("hello",))
    thread.start()
    found = [waiting(), len(calls)]
thread.join(60)
show(found, len(calls))
"""
    assert script(body, CGROUP_THREADS_PATIENCE="30") == [[1, 0], 1]


def test_a_model_closed_while_a_call_waits() -> None:
    """The context's memory is gone by the time the call has its cores."""
    body = """
llm = ct.create_llama(PATH, **COMMON)
llm.embed("hello")
found = []
def embed():
    try:
        llm.embed("hello")
    except RuntimeError as error:
        found.append(str(error))
with Held(2):
    thread = threading.Thread(target=embed)
    thread.start()
    found.append(waiting())
    llm.close()
thread.join(60)
show(found, len(calls), ct.statistics().active)
"""
    text = "the model was closed while this call waited for cores"
    assert script(body, CGROUP_THREADS_PATIENCE="30") == [[1, text], 1, 0]


def test_a_model_released_while_a_call_waits() -> None:
    body = """
llm = govern(llama_cpp.Llama(PATH, n_threads=2, n_threads_batch=2, **COMMON))
with Held(1):
    llm.embed("hello")
    found = [live(llm)]
    with Held(1):
        thread = threading.Thread(target=llm.embed, args=("hello",))
        thread.start()
        found.append(waiting())
        release(llm)
    thread.join(60)
show(found, live(llm), calls[-1][1:3], vars(llm._ctx).keys() & {"decode", "encode"} == set())
"""
    assert script(body, CGROUP_THREADS_PATIENCE="30") == [[[1, 1], 1], [2, 2], [2, 2], True]


@pytest.mark.parametrize("around", ["block", "nothing", "thread"])
def test_a_model_with_more_threads_than_cores_grows_again(around: str) -> None:
    """Its own count is out of reach: it grows to what a lease can have there."""
    body = """
import contextlib, warnings
from concurrent.futures import ThreadPoolExecutor
warnings.simplefilter("ignore", ct.CgroupThreadsWarning)
llm = ct.create_llama(PATH, n_threads=8, n_threads_batch=8, **COMMON)
def embed(cores=3):
    with ct.limit_threads(cores) if AROUND == "block" else contextlib.nullcontext():
        llm.embed("hello")
    return calls[-1][1]
def run(work):
    if AROUND != "thread":
        return work()
    with ThreadPoolExecutor(1, initializer=ct.initializer, initargs=(3,)) as pool:
        return pool.submit(work).result(60)
def grow():
    for tokens in range(100):  # the demand's mean comes down
        if embed() == 3:
            break
    return calls[-1][1]
llm._ctx.set_n_threads(2, 2)
show(run(grow), live(llm))
"""
    cores = "3" if around == "nothing" else "5"
    found = script(f"AROUND = {around!r}\n" + body, CGROUP_THREADS_CORES=cores)
    assert found == [3, [3, 3]]


def test_a_model_of_our_counts_follows_a_budget_that_grows() -> None:
    """A count that the user gave is the most it gets."""
    body = """
llm, hooked = ct.create_llama(PATH, **COMMON), govern(llama_cpp.Llama(PATH, **COMMON))
given, later = ct.create_llama(PATH, n_threads_batch=1, **COMMON), ct.create_llama(PATH, **COMMON)
later.n_threads_batch = 2
models = llm, hooked, given, later
def threads():
    for model in models:
        model.embed("hello")
    return [call[1] for call in calls[-4:]]
found = [threads()]
ct.configure(cores=4)
found.append(threads())
for model in models:
    release(model)
show(found, [live(model) for model in models])
"""
    found = script(body, CGROUP_THREADS_CORES="1")
    assert found == [[[1, 1, 1, 1], [4, 4, 1, 2]], [[1, 1], [1, 1], [1, 1], [1, 2]]]


def test_a_limit_around_is_used_and_not_added_to() -> None:
    body = """
llm = ct.create_llama(PATH, **COMMON)
def limited():
    with ct.limit_threads(1):
        llm.embed("hello"); llm.embed("again")
granted = leases(limited)
with Held(1), ct.limit_threads():
    llm.embed("beside")
show(granted, calls)
"""
    granted, calls = script(body, CGROUP_THREADS_PATIENCE="30")
    assert granted == 1
    assert [call[1:] for call in calls] == [[1, 1, 1], [1, 1, 1], [1, 1, 2]]


def test_outputs_are_bit_equal_governed_released_and_untouched() -> None:
    body = """
def output(llm):
    llm.reset()
    llm.eval(llm.tokenize(b"The capital of France is"))
    rows = []
    for token in (100, 200, 300):
        llm.eval([token])
        address = ctypes.addressof(llm._ctx.get_logits().contents)
        rows.append(ctypes.string_at(address, 4 * llm.n_vocab()))
    text = llm("The capital of France is", max_tokens=6, temperature=0)["choices"][0]["text"]
    return rows, text
plain = llama_cpp.Llama(GEMMA, **options)
untouched = set(vars(plain._ctx))
first = output(plain)
llm = govern(plain)
governed = output(llm)
with Held(1):
    shrunk = output(llm)
    small = live(llm)
release(llm)
ended = [live(llm), set(vars(llm._ctx)) == untouched, leases(lambda: llm.eval([5]))]
llm.reset()
other = llama_cpp.Llama(GEMMA, **options)
show(first == governed, first == shrunk, small, ended, first == output(llm), first == output(other))
"""
    assert gemma_script(body) == [True, True, [1, 1], [[2, 2], True, 0], True, True]


def test_govern_and_release_twice() -> None:
    body = """
llm = llama_cpp.Llama(PATH, n_threads=1, **COMMON)
before = set(vars(llm)), set(vars(llm._ctx)), attributes(llm)
release(llm)
assert govern(llm) is llm and govern(llm) is llm
governed = leases(lambda: llm.embed("hello")), len(calls), len(governors())
assert set(vars(llm)) == before[0]
assert release(llm) is llm
release(llm)
after = set(vars(llm)), set(vars(llm._ctx)), attributes(llm)
released = leases(lambda: llm.embed("hello")), live(llm), len(governors())
govern(llm)
show(governed, before == after, released, leases(lambda: llm.embed("hello")))
"""
    assert script(body) == [[1, 1, 1], True, [0, [1, 2], 0], 1]


def test_counts_assigned_later_count() -> None:
    body = """
llm = ct.create_llama(PATH, **COMMON)
llm.n_threads_batch = 1
llm.embed("hello"); one = calls[-1]
llm.n_threads_batch = 0
llm.embed("hello"); default = calls[-1]
llm.n_threads_batch = 1
release(llm)
assigned = live(llm)
other = llama_cpp.Llama(PATH, **COMMON)
other._ctx.set_n_threads(1, 2)  # past the attributes
govern(other).embed("hello")
release(other)
show(one, default, assigned, live(other), attributes(other))
"""
    one, default, assigned, native, attributes = script(body)
    assert one[1:] == [1, 1, 1]
    assert default[1:] == [2, 2, 2]
    assert assigned == [2, 1]
    assert native == [1, 2]
    assert attributes == [2, 2, 2, 2]


def test_more_threads_than_cores_are_not_leased() -> None:
    body = """
import warnings
warnings.simplefilter("ignore", ct.CgroupThreadsWarning)
llm = ct.create_llama(PATH, n_threads=3, n_threads_batch=5, **COMMON)
llm.embed("hello")
release(llm)
show(attributes(llm), calls[0][1:], live(llm))
"""
    assert script(body) == [[3, 5, 3, 5], [2, 2, 2], [3, 5]]


def test_methods_of_others_are_kept() -> None:
    body = """
llm = llama_cpp.Llama(PATH, **COMMON)
seen = []
def between(name, method):
    def call(batch):
        seen.append(name)
        return method(batch)
    return call
inner = llm._ctx.decode = between("inner", llm._ctx.decode)
govern(llm)
outer = llm._ctx.decode = between("outer", llm._ctx.decode)
granted = [leases(lambda: llm.embed("hello"))]
govern(llm)
granted.append(leases(lambda: llm.embed("hello")))
release(llm)
granted.append(leases(lambda: llm.embed("hello")))
assert llm._ctx.decode is outer
other = llama_cpp.Llama(PATH, **COMMON)
other._ctx.decode = inner
release(govern(other))
show(granted, seen, other._ctx.decode is inner)
"""
    assert script(body) == [[1, 1, 0], ["outer", "inner"] * 3, True]


def test_an_error_gives_the_lease_back() -> None:
    body = """
llm = ct.create_llama(PATH, **COMMON)
good = native.llama_decode
def failing(ctx, batch):
    good(ctx, batch)
    return -3
native.llama_decode = failing
found = []
for _ in range(3):
    try:
        llm.embed("hello")
    except RuntimeError as error:
        found.append(str(error))
now = ct.statistics()
native.llama_decode = good
with Held(2):
    pass
show(found, now.active, now.leased, now.granted, len(llm.embed("hello")))
"""
    assert script(body) == [["llama_decode returned -3"] * 3, 0, 0, 3, 64]


@pytest.mark.parametrize("path", ["PATH", "GEMMA"])
def test_a_model_is_freed_at_once(path: str) -> None:
    body = f"""
gc.collect(); gc.disable()
llm = ct.create_llama({path}, n_ctx=64, embedding=True, verbose=False)
llm.embed("hello")
model, context, governor = weakref.ref(llm), weakref.ref(llm._ctx), weakref.ref(governors()[0])
del llm
show(model() is None, context() is None, governor() is None, len(governors()), ct.statistics().active)
"""
    assert gemma_script(body) == [True, True, True, 0, 0]


def test_a_closed_model() -> None:
    body = """
llm = ct.create_llama(PATH, **COMMON)
llm.embed("hello")
llm.close()
left = len(governors())
release(llm); release(llm); govern(llm); llm.close()
other = ct.create_llama(PATH, **COMMON)
show(left, len(governors()), leases(lambda: other.embed("hello")), ct.statistics().active)
"""
    assert script(body) == [0, 1, 1, 0]


def test_a_model_made_by_hand_is_not_governed() -> None:
    body = """
llm = llama_cpp.Llama(PATH, **COMMON)
show(leases(lambda: llm.embed("hello")), len(governors()))
"""
    assert script(body) == [0, 0]


def test_on_an_event_loop_a_call_does_not_wait() -> None:
    body = """
import asyncio
llm = ct.create_llama(PATH, **COMMON)
async def main():
    llm.embed("hello")
    with Held(2):
        llm.embed("again")
asyncio.run(main())
show([call[1] for call in calls], ct.statistics().overcommitted)
"""
    assert script(body) == [[2, 1], 1]


# What a llama.cpp without OpenMP says of itself, and a library without its symbols; a real one is in the slow tier.
WITHOUT_OPENMP = """
native.llama_print_system_info = lambda: b"CPU : SSE3 = 1 | AVX2 = 1 | REPACK = 1 | "
native._lib = types.SimpleNamespace()
from cgroup_threads.state import process
def notices():
    return [notice.message for notice in process.notices if notice.code == "llama-without-openmp"]
"""


def test_without_openmp_counts_end_at_the_usable_cores() -> None:
    body = """
import warnings
warnings.simplefilter("ignore", ct.CgroupThreadsWarning)
llm = ct.create_llama(PATH, n_threads=1, n_threads_batch=5, **COMMON)
first = attributes(llm), notices()
other = govern(llama_cpp.Llama(PATH, n_threads=4, **COMMON))
other.embed("hello")
show(*first, live(other), attributes(other), notices()[1:])
"""
    counts, message, live, kept, second = script(WITHOUT_OPENMP + body)
    start = "this llama.cpp was built without OpenMP, its threads spin without end"
    assert counts == [1, 2, 1, 2]
    assert message == [f"{start}: n_threads_batch=5: lowered to 2"]
    assert live == [2, 2]
    assert kept == [2, 2, 2, 2]
    assert second == [f"{start}: n_threads=4: lowered to 2"]


def test_the_installed_build_is_told_from_one_without_openmp() -> None:
    """The library's own word and its symbols agree."""
    body = """
from cgroup_threads.models.llama_builds import spins_without_end
info = native.llama_print_system_info()
symbols = any(hasattr(native._lib, name) for name in ("GOMP_parallel", "__kmpc_fork_call"))
show(spins_without_end(), not (b"OPENMP = 1" in info or symbols))
"""
    ours, expected = script(body)
    assert ours == expected


def test_a_fork_computes_under_its_own_budget() -> None:
    body = """
llm = ct.create_llama(PATH, n_threads=1, n_threads_batch=1, **COMMON)
first = llm.embed("hello")
read, write = os.pipe()
if os.fork() == 0:
    same = llm.embed("hello") == first
    os.write(write, json.dumps([same, ct.statistics().granted]).encode())
    os._exit(0)
os.wait()
show(json.loads(os.read(read, 100)), ct.statistics().granted)
"""
    assert script(body) == [[True, 1], 1]
