"""Models of Hugging Face's transformers as computations: do they compile, and do results agree?

    python benchmarks/hugging_face.py [--generate | --train] [NAME ...]

Needs the package transformers (``pip install transformers``; a peer, no dependency). Each model is
made from its configuration with one layer and small sizes, random weights, and is called on two
rows of seven tokens or an image of 32 x 32: once by torch, once as ``tilecore.compute`` has it, on
the CPU in float32. Printed: kernels of ours, what torch computes between them, or what is refused.

``--generate``: models of language generate 20 tokens for two prompts of 11, with their cache, once
by torch and once with ``model.forward = tilecore.compute(model.forward)``; tokens and scores are
compared.

``--train``: the gradients of all parameters for the mean square of the last hidden state, once by
torch and once by ``torch.compile(backend="tilecore")``, in evaluation mode: nothing is dropped.
"""

from __future__ import annotations

import argparse
import inspect
import os
import tempfile
import time
import warnings
from collections.abc import Mapping
from typing import Any
from unittest import mock

import torch
import transformers

import tilecore
from tilecore import torch_backend
from tilecore.computing.planning.plan import Called

SMALL = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 4,
}  # fmt: skip
TEXT = {**SMALL, "vocab_size": 100, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
GROUPED = {**TEXT, "num_key_value_heads": 2}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
IMAGE = {**SMALL, "image_size": 32, "patch_size": 8}
OF_GROUPS = (
    "Llama", "Mistral", "Qwen2", "Phi3", "StableLm", "Cohere", "Olmo2", "Granite", "Starcoder2",
    "Nemotron",
)  # fmt: skip
OF_WIDE_HEADS = ("Gemma", "Gemma2", "Gemma3Text", "Qwen3")
PLAIN = ("Phi", "GPTNeoX", "Falcon", "Roberta", "Bert", "ModernBert", "Albert", "Electra")
TEXTS: Mapping[str, Mapping[str, Any]] = {
    **dict.fromkeys(OF_GROUPS, GROUPED),
    **{name: {**GROUPED, "head_dim": 16} for name in OF_WIDE_HEADS},
    **dict.fromkeys(PLAIN, TEXT),
    "GPT2": {"n_embd": 64, "n_layer": 1, "n_head": 4, "vocab_size": 100},
    "Bloom": {"hidden_size": 64, "n_layer": 1, "n_head": 4, "vocab_size": 100},
    "OPT": {**TEXT, "ffn_dim": 128, "word_embed_proj_dim": 64},
    "DistilBert": {"dim": 64, "hidden_dim": 128, "n_layers": 1, "n_heads": 4, "vocab_size": 100},
    "T5Encoder": {
        "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 1, "num_heads": 4, "vocab_size": 100,
    },
    "Mamba": {"hidden_size": 64, "num_hidden_layers": 1, "vocab_size": 100, "state_size": 8},
    "Mixtral": {**GROUPED, "num_local_experts": 4},
    "Qwen2Moe": {**GROUPED, **EXPERTS, "shared_expert_intermediate_size": 32},
    "Qwen3Moe": {**GROUPED, **EXPERTS, "head_dim": 16},
    "Olmoe": {**GROUPED, **EXPERTS},
    "GptOss": {**GROUPED, "head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2},
    "Glm4Moe": {**GROUPED, "n_routed_experts": 4, "first_k_dense_replace": 0, **EXPERTS,
                "n_group": 1, "topk_group": 1},
    "DeepseekV3": {
        **TEXT, "num_key_value_heads": 4, "q_lora_rank": 32, "kv_lora_rank": 16,
        "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16, "n_routed_experts": 4,
        "first_k_dense_replace": 0, "moe_intermediate_size": 32, "n_group": 1, "topk_group": 1,
        "num_experts_per_tok": 2,
    },
}  # fmt: skip
IMAGES: Mapping[str, Mapping[str, Any]] = {
    **dict.fromkeys(("ViT", "CLIPVision", "Dinov2", "SiglipVision"), IMAGE),
    "ResNet": {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1]},
    "ConvNext": {"hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2},
    "Swin": {
        "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "image_size": 32, "patch_size": 2,
        "window_size": 4,
    },
}  # fmt: skip


def model_of(name: str, config: Mapping[str, Any]) -> Any:
    """Return a model with random weights, for inference."""
    made = getattr(transformers, f"{name.removesuffix('Encoder')}Config")(**config)
    return getattr(transformers, f"{name}Model")(made).eval()


def outcome(model: Any, given: Mapping[str, Any]) -> str:
    """Return what became of a model, as cells of a table."""
    if "use_cache" in inspect.signature(model.forward).parameters:
        given = {**given, "use_cache": False}
    computation = tilecore.compute(lambda **kwargs: model(**kwargs).last_hidden_state)
    wanted = model(**given).last_hidden_state
    try:
        found = computation(**given)
    except tilecore.errors.TileError as error:
        return f"refused: {error.code} {error.message} | |"
    largest = (found - wanted).abs().max() / wanted.abs().max()
    plan = computation.plan(**given)
    calls = [step.node.op for step in plan.steps if isinstance(step, Called)]
    kinds = ", ".join(f"{op} ({calls.count(op)})" for op in dict.fromkeys(calls))
    return f"largest difference {largest:.1e} of the largest element | {len(plan.stages)} | {kinds}"


def generated(name: str, config: Mapping[str, Any]) -> str | None:
    """Return what became of a model that generates, as cells of a table; None: it does not."""
    ends = (f"{name}ForCausalLM", f"{name}LMHeadModel", f"{name.removesuffix('Text')}ForCausalLM")
    kind = next((getattr(transformers, end) for end in ends if hasattr(transformers, end)), None)
    if kind is None:
        return None
    model = kind(getattr(transformers, f"{name}Config")(**config)).eval()
    prompts = torch.randint(3, 100, (2, 11))

    def run() -> Any:
        return model.generate(
            prompts, max_new_tokens=20, do_sample=False, pad_token_id=0, eos_token_id=None,
            output_scores=True, return_dict_in_generate=True,
        )  # fmt: skip

    wanted = run()
    model.forward = computation = tilecore.compute(model.forward)
    try:
        start = time.perf_counter()
        found = run()
        took = time.perf_counter() - start
    except tilecore.errors.TileError as error:
        return f"refused: {error.code} {error.message} | | |"
    pairs = zip(found.scores, wanted.scores, strict=True)
    largest = max(float((a - b).abs().max() / b[b.isfinite()].abs().max()) for a, b in pairs)
    said = "the same" if torch.equal(found.sequences, wanted.sequences) else "**others**"
    kernels = {stage for plan in computation.plans for stage in plan.stages}
    return f"{said} | {largest:.1e} | {len(kernels)} | {took:.1f}"


def trained(model: Any, given: Mapping[str, Any]) -> str:
    """Return how the gradients of a model compare, as cells of a table."""
    torch.compiler.reset()
    if "use_cache" in inspect.signature(model.forward).parameters:
        given = {**given, "use_cache": False}
    computations: list[Any] = []
    real = torch_backend.Computation

    def computation(*args: Any, **kwargs: Any) -> Any:
        computations.append(real(*args, **kwargs))
        return computations[-1]

    def gradients(call: Any) -> dict[str, Any]:
        model.zero_grad()
        call(**given).last_hidden_state.square().mean().backward()
        return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}

    wanted = gradients(model)
    with warnings.catch_warnings(record=True) as caught, mock.patch.object(
        torch_backend, "Computation", computation
    ):  # fmt: skip
        warnings.simplefilter("always", torch_backend.GraphByTorch)
        start = time.perf_counter()
        try:
            found = gradients(torch.compile(model, backend="tilecore"))
        except Exception as error:  # noqa: BLE001  # a result
            return f"**{type(error).__name__}**: {str(error).splitlines()[0][:200]} | | |"
        took = time.perf_counter() - start
    scale = max(float(g.abs().max()) for g in wanted.values())
    largest = max(float((found[n] - wanted[n]).abs().max()) for n in wanted) / scale
    refused = [str(w.message) for w in caught if issubclass(w.category, torch_backend.GraphByTorch)]
    kernels = {stage for c in computations for plan in c.plans for stage in plan.stages}
    graphs = f"{len(computations)}" + f", {len(refused)} by torch: {refused[:1]}" * bool(refused)
    return f"{largest:.1e} | {graphs} | {len(kernels)} | {took:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--generate", action="store_true", help="have models of language generate")
    parser.add_argument("--train", action="store_true", help="compare gradients")
    arguments = parser.parse_args()
    names = arguments.names
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    tokens = {"input_ids": torch.randint(0, 100, (2, 7))}
    image = {"pixel_values": torch.randn(1, 3, 32, 32)}
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")
    head, line = "| model | outcome | kernels | computed by torch |", "|---|---|---|---|"
    if arguments.generate:
        head = "| model | tokens | largest difference of scores | kernels | first time, s |"
        line = "|---|---|---|---|---|"
    if arguments.train:
        head = "| model | largest difference of gradients | graphs | kernels | first time, s |"
        line = "|---|---|---|---|---|"
    print(f"{head}\n{line}")
    with torch.set_grad_enabled(arguments.train), tempfile.TemporaryDirectory() as folder:
        os.environ["TILECORE_DATA_DIR"] = folder
        for models, given in ((TEXTS, tokens), (IMAGES, image)):
            for name, config in models.items():
                if names and name not in names:
                    continue
                if arguments.generate:
                    cells = generated(name, config)
                elif arguments.train:
                    cells = trained(model_of(name, config), given)
                else:
                    cells = outcome(model_of(name, config), given)
                if cells is not None:
                    print(f"| {name} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
