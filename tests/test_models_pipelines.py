"""``govern`` and ``release`` on pipelines of transformers, with tiny random models and MiniLM's tokenizer."""

from __future__ import annotations

from typing import Any

from tests.lab import require_module
from tests.lab.models import minilm_directory, run_script

PREAMBLE = """
import json
import cgroup_threads as ct
from cgroup_threads.models.governing import govern, release
import torch, transformers
PATH = {path!r}
transformers.utils.logging.set_verbosity_error()
torch.manual_seed(0)
tokenizer = transformers.AutoTokenizer.from_pretrained(PATH)
seen = []
def note(module, args): seen.append([torch.get_num_threads(), ct.statistics().leased])
def watch(model):
    model.register_forward_pre_hook(note)  # inside the module's call, around its forward
    next(iter(model.modules())).get_input_embeddings().register_forward_pre_hook(note)
    return model.eval()
def granted(call):
    before = ct.statistics().granted
    result = call()
    return ct.statistics().granted - before, result
def show(*values): print(json.dumps(values))
"""


def pipeline_script(script: str) -> Any:
    require_module("transformers")
    environ = {"OMP_NUM_THREADS": "3", "MKL_NUM_THREADS": "3", "MKL_DYNAMIC": "FALSE"}
    environ.update(CGROUP_THREADS_CORES="2", CGROUP_THREADS_SCOPE="process")
    return run_script(PREAMBLE.format(path=minilm_directory()) + script, **environ)


def test_a_lease_for_each_batch() -> None:
    script = """
config = transformers.BertConfig(
    vocab_size=30522, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64)
model = watch(transformers.BertForSequenceClassification(config))
pipeline = transformers.pipeline("text-classification", model=model, tokenizer=tokenizer, device="cpu")
texts = ["one", "two", "three", "four", "five"]
plain = pipeline(texts, batch_size=2)
before = dict(vars(model)), dict(vars(pipeline))
seen.clear()
assert govern(pipeline) is pipeline
batched, result = granted(lambda: pipeline(texts, batch_size=2))
inside = seen[:2]
single, _ = granted(lambda: pipeline("one"))
release(pipeline)
left = dict(vars(model)).keys() == before[0].keys(), dict(vars(pipeline)).keys() == before[1].keys()
after, _ = granted(lambda: pipeline("one"))
error = max(abs(a["score"] - b["score"]) for a, b in zip(plain, result))
show(batched, single, inside, left, after, error <= 1e-5)
"""
    batched, single, inside, left, after, equal = pipeline_script(script)
    assert (batched, single, after) == (3, 1, 0)
    assert inside == [[3, 0], [2, 2]], "before the forward pass, and in it"
    assert (left, equal) == ([True, True], True)


def test_pipelines_that_share_a_model_are_released_one_by_one() -> None:
    script = """
config = transformers.BertConfig(
    vocab_size=30522, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64)
model = transformers.BertForSequenceClassification(config).eval()
def make(): return transformers.pipeline("text-classification", model=model, tokenizer=tokenizer, device="cpu")
def leases(pipeline): return granted(lambda: pipeline("one"))[0]
one, two = make(), make()
govern(one), govern(one), govern(two)
found = [leases(two)]
release(one)
found.append(leases(two))
release(two)
found.append(leases(two))
govern(model), govern(one)
release(one)
found.append(leases(two))
govern(two)
release(model)  # the model itself, for all
found.append(leases(two))
govern(one)
del one  # never released
govern(two)
release(two)
found.append(leases(two))
show(found, "forward" in vars(model))
"""
    assert pipeline_script(script) == [[1, 1, 0, 1, 0, 0], False]


def test_the_encoder_of_an_encoder_decoder_takes_a_lease() -> None:
    """``generate`` runs it by itself; in the model's own forward pass its lease is the model's."""
    script = """
config = transformers.T5Config(
    vocab_size=50, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0)
model = transformers.T5ForConditionalGeneration(config).eval()
before = dict(vars(model)).keys(), dict(vars(model.encoder)).keys()
govern(model)
model.encoder.block[0].register_forward_pre_hook(note)
tokens = torch.tensor([[3, 4, 5, 6]])
generated, _ = granted(lambda: model.generate(tokens, max_new_tokens=3, min_new_tokens=3, do_sample=False))
whole, _ = granted(lambda: model(input_ids=tokens, decoder_input_ids=tokens))
release(model)
model(input_ids=tokens, decoder_input_ids=tokens)
after = dict(vars(model)).keys(), dict(vars(model.encoder)).keys()
show(generated, whole, seen, before == after)
"""
    assert pipeline_script(script) == [4, 1, [[2, 2], [2, 2], [3, 0]], True]


def test_generation_takes_a_lease_for_each_token() -> None:
    script = """
config = transformers.GPT2Config(
    vocab_size=30522, n_positions=64, n_embd=32, n_layer=1, n_head=2, bos_token_id=101, eos_token_id=30521)
model = watch(transformers.GPT2LMHeadModel(config))
model.generation_config.eos_token_id = None
pipeline = transformers.pipeline("text-generation", model=model, tokenizer=tokenizer, device="cpu")
def generate(): return pipeline("the pod", max_new_tokens=6, do_sample=False)[0]["generated_text"]
plain = generate()
govern(pipeline)
count, text = granted(generate)
release(pipeline)
show(count, text == plain, granted(generate)[0])
"""
    assert pipeline_script(script) == [6, True, 0]
