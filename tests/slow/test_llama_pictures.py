"""Pictures through a real libmtmd: a random encoder and decoder, real chat handlers, real PNG files."""

from __future__ import annotations

from typing import Any

import pytest

from tests.lab.builds import BUILD_SECONDS, llama_without_openmp
from tests.lab.models import HELD, llama_script
from tests.lab.pictures import PATCHES, decoder_gguf, png, projector_gguf

pytestmark = [
    pytest.mark.slow,
    pytest.mark.where("venvs: llama.cpp without OpenMP, libmtmd"),
    pytest.mark.timeout(BUILD_SECONDS + 600),
]

# The call that encodes and decodes a picture is watched below our wrapper: the budget's leases and the counts of then.
PRELUDE = """
import base64, ctypes, os, threading, time, warnings
warnings.simplefilter("ignore")  # of counts above the usable cores
import cgroup_threads as ct
import llama_cpp
from llama_cpp import llama_cpp as native, mtmd_cpp
from llama_cpp.llama_chat_format import Llava15ChatHandler, MTMDChatHandler
pictures = []
evaluate = mtmd_cpp.mtmd_helper_eval_chunk_single
def watched(mtmd, context, chunk, *rest):
    counts = native.llama_n_threads(context), native.llama_n_threads_batch(context)
    pictures.append([mtmd_cpp.mtmd_input_chunk_get_n_tokens(chunk), *counts, ct.statistics().leased])
    return evaluate(mtmd, context, chunk, *rest)
mtmd_cpp.mtmd_helper_eval_chunk_single = watched
decoded = []
decode = native.llama_decode
def counted(context, batch):
    decoded.append(batch.n_tokens)
    return decode(context, batch)
native.llama_decode = counted
OPTIONS = {"n_ctx": 1024, "verbose": False}
# Half a character is no token to llama-cpp-python: it goes on until there is a whole one.
ASCII = {str(token): -100 for token in (0, 1, 2, *range(3 + 128, 3 + 256))}
URLS = ["data:image/png;base64," + base64.b64encode(picture).decode() for picture in PICTURES]
def eyes(kind=Llava15ChatHandler): return kind(clip_model_path=EYES, verbose=False)
def see(llm, number=2):
    pictures.clear(); decoded.clear()
    content = [{"type": "image_url", "image_url": {"url": url}} for url in URLS[:number]]
    content.append({"type": "text", "text": "What is it?"})
    before = ct.statistics().granted
    message = {"role": "user", "content": content}
    llm.create_chat_completion([message], max_tokens=4, temperature=0, logit_bias=ASCII)
    return ct.statistics().granted - before
def output(llm):
    '''The bytes of the last picture's embedding, and of the logits after the last token.'''
    see(llm)
    vision = mtmd_cpp.mtmd_get_output_embd(llm.chat_handler.mtmd_ctx)
    logits = native.llama_get_logits(llm._ctx.ctx)
    return ctypes.string_at(vision, 4 * PATCHES * llm.n_embd()), ctypes.string_at(logits, 4 * llm.n_vocab())
"""


def script(body: str, **environ: str) -> Any:
    """``body`` in a process of its own whose budget is 2 cores."""
    first = f"sys.path.insert(0, {llama_without_openmp()!r})\n"
    names = f"PATH, EYES, PATCHES = {decoder_gguf()!r}, {projector_gguf()!r}, {PATCHES}\n"
    pictures = f"PICTURES = {[png(1), png(2)]!r}\n"
    environ = {"CGROUP_THREADS_CORES": "2", "CGROUP_THREADS_SCOPE": "process", **environ}
    return llama_script(first + names + pictures + PRELUDE + HELD + body, **environ)


@pytest.mark.parametrize("handler", ["Llava15ChatHandler", "MTMDChatHandler"])
def test_each_picture_takes_a_lease(handler: str) -> None:
    """So does each native call between and after them; nothing else takes one."""
    body = f"""
llm = ct.create_llama(PATH, n_threads=1, chat_handler=eyes({handler}), **OPTIONS)
granted = see(llm)
found = [granted == len(pictures) + len(decoded), pictures[:], len(decoded) > 4]
with Held(1):
    see(llm, 1)
    found.append(pictures[:])
ct.release(llm)
show(*found, see(llm), len(pictures), ct.statistics().active)
"""
    picture = [PATCHES, 2, 2, 2]
    assert script(body) == [True, [picture, picture], True, [[PATCHES, 1, 1, 2]], 0, 2, 0]


def test_all_chunks_at_once_take_one_lease() -> None:
    """``mtmd_helper_eval_chunks``, which decodes text and pictures without coming back to Python."""
    body = """
llm = ct.create_llama(PATH, n_threads=1, chat_handler=eyes(), **OPTIONS)
see(llm, 1)
handler = llm.chat_handler
def prompt():
    bitmap = handler._create_bitmap_from_bytes(PICTURES[0])
    chunks = mtmd_cpp.mtmd_input_chunks_init()
    text = mtmd_cpp.mtmd_input_text()
    words = b"look: <__media__> and tell"
    text.text, text.text_len, text.add_special, text.parse_special = words, len(words), True, True
    bitmaps = (mtmd_cpp.mtmd_bitmap_p_ctypes * 1)(bitmap)
    assert mtmd_cpp.mtmd_tokenize(handler.mtmd_ctx, chunks, ctypes.byref(text), bitmaps, 1) == 0
    return bitmap, chunks
def run():
    bitmap, chunks = prompt()
    llm._ctx.kv_cache_clear()
    past = llama_cpp.llama_pos(0)
    before = ct.statistics().granted
    result = mtmd_cpp.mtmd_helper_eval_chunks(
        handler.mtmd_ctx, llm._ctx.ctx, chunks, llama_cpp.llama_pos(0), llama_cpp.llama_seq_id(0), 512, True,
        ctypes.byref(past))
    granted = ct.statistics().granted - before
    size = mtmd_cpp.mtmd_input_chunks_size(chunks)
    mtmd_cpp.mtmd_input_chunks_free(chunks)
    mtmd_cpp.mtmd_bitmap_free(bitmap)
    return [result, granted, size, past.value > PATCHES]
found = run()
ct.release(llm)
show(found, run())
"""
    assert script(body) == [[0, 1, 3, True], [0, 0, 3, True]]


def test_outputs_are_bit_equal_governed_released_and_untouched() -> None:
    body = """
untouched = output(llama_cpp.Llama(PATH, chat_handler=eyes(), **OPTIONS))
llm = ct.create_llama(PATH, chat_handler=eyes(), **OPTIONS)
governed = output(llm)
with Held(1):
    shrunk = output(llm)
ct.release(llm)
released = output(llm)
single = output(llama_cpp.Llama(PATH, n_threads=1, n_threads_batch=1, chat_handler=eyes(), **OPTIONS))
other = llama_cpp.Llama(PATH, chat_handler=eyes(), **OPTIONS)
URLS.reverse()
show(governed == untouched, shrunk == untouched, released == untouched, single == untouched,
     len(set(untouched[0])) > 100, [one == two for one, two in zip(output(other), untouched)])
"""
    assert script(body) == [True, True, True, True, True, [False, False]]


# Threads live as long as one native call in this build: what is there beside the caller are the encoder's.
ENCODE = """
def tasks(): return len(os.listdir("/proc/self/task"))
ALONE = tasks()
def encode(context):
    '''The threads that the process has more while a picture is encoded, at most.'''
    bitmap = mtmd_cpp.mtmd_helper_bitmap_init_from_buf(
        context, (ctypes.c_uint8 * len(PICTURES[0])).from_buffer_copy(PICTURES[0]), len(PICTURES[0]), False)
    chunks = mtmd_cpp.mtmd_input_chunks_init()
    text = mtmd_cpp.mtmd_input_text()
    words = b"<__media__>"
    text.text, text.text_len, text.add_special, text.parse_special = words, len(words), False, True
    bitmaps = (mtmd_cpp.mtmd_bitmap_p_ctypes * 1)(bitmap)
    assert mtmd_cpp.mtmd_tokenize(context, chunks, ctypes.byref(text), bitmaps, 1) == 0
    assert mtmd_cpp.mtmd_input_chunks_size(chunks) == 1
    chunk = mtmd_cpp.mtmd_input_chunks_get(chunks, 0)
    most, over, begun = [0], threading.Event(), threading.Event()
    deadline = time.monotonic() + 30  # the kernel may show threads that were joined for a moment
    while tasks() > ALONE and time.monotonic() < deadline:
        pass
    assert tasks() == ALONE
    def look():
        begun.set()
        while not over.is_set():
            most[0] = max(most[0], tasks() - ALONE - 1)
    thread = threading.Thread(target=look)
    thread.start()
    assert begun.wait(60)
    for _ in range(2):
        assert mtmd_cpp.mtmd_encode_chunk(context, chunk) == 0
    over.set()
    thread.join()
    mtmd_cpp.mtmd_input_chunks_free(chunks)
    mtmd_cpp.mtmd_bitmap_free(bitmap)
    return most[0] + 1
def threads(llm):
    '''Those of the encoder that the chat handler has loaded.'''
    llm.chat_handler._init_mtmd_context(llm)
    return encode(llm.chat_handler.mtmd_ctx)
def load(llm, count=None):
    parameters = mtmd_cpp.mtmd_context_params_default()
    parameters.print_timings = False
    if count is not None:
        parameters.n_threads = count
    with llama_cpp._utils.suppress_stdout_stderr(disable=False):
        return mtmd_cpp.mtmd_init_from_file(EYES.encode(), llm.model, parameters)
"""


def test_a_governed_models_encoder_computes_with_the_count_for_prompts() -> None:
    body = """
one = ct.create_llama(PATH, n_threads=1, chat_handler=eyes(), **OPTIONS)
two = ct.create_llama(PATH, n_threads_batch=1, chat_handler=eyes(), **OPTIONS)
many = ct.create_llama(PATH, n_threads=6, n_threads_batch=6, chat_handler=eyes(), **OPTIONS)
show(threads(one), threads(two), threads(many))
"""
    assert script(ENCODE + body) == [2, 1, 2]


def test_an_encoder_never_has_more_threads_than_cores() -> None:
    """This build spins without end: lowered for every model, and by itself it would have four."""
    body = """
from cgroup_threads.state import process
llm = llama_cpp.Llama(PATH, n_threads=6, chat_handler=eyes(), **OPTIONS)
found = [threads(llm), encode(load(llm)), encode(load(llm, 3)), encode(load(llm, 1))]
ct.undo()
show(found, encode(load(llm)), encode(load(llm, 3)))
"""
    assert script(ENCODE + body) == [[2, 2, 2, 1], 4, 3]
