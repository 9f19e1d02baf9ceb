#!/usr/bin/env python3
"""transformers_test.py ANANKE GOLDEN_DIR models|tokenizers: folders written by `ananke export` open in Hugging Face transformers, and both
sides compute the same logits, loss and gradients from them.

For several models: import a folder, train a few steps on two ranks, export as fp32 in shards and as bf16 in one file,
open both in transformers and let `ananke parity` compare (logits to 1e-5). Tokenizers are cut with in a part of their
own, since they need more packages, and what lacks one is skipped, not passed.
"""
import importlib
import os
import pathlib
import subprocess
import sys
import tempfile


NEEDED = {"models": ("torch", "transformers", "safetensors"),
          "tokenizers": ("transformers", "google.protobuf", "sentencepiece")}


def find_python():
    """Starts again under ANANKE_PYTHON; leaves with 77 where it has not what the part needs."""
    python = os.environ.get("ANANKE_PYTHON")
    if python and not os.environ.get("ANANKE_STARTED"):
        os.environ["ANANKE_STARTED"] = "1"
        os.execv(python, [python] + sys.argv)
    for package in NEEDED[sys.argv[3]]:
        try:
            importlib.import_module(package)
        except ImportError:
            print(f"skipped: {sys.executable} has no {package}; ANANKE_PYTHON names a Python that has "
                  + ", ".join(NEEDED[sys.argv[3]]))
            sys.exit(77)


JOB = """
name: "exported"
run_dir: "set on the command line"
training {{ steps: 3 sequence_length: 32 rows_per_step: 8 }}
data {{ generated {{ documents: 64 shortest: 8 longest: 64 }} }}
plugins {{ config {{ [ananke/ananke.plugin.AdamW] {{ lr: 3e-3 }} }} }}
optimizer {{ use: "adamw" }}
{model}
"""


def run(*words):
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, words))} ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def record_case(folder):
    """Logits, loss and gradients as transformers computes them in float32."""
    import torch
    import transformers
    from safetensors.torch import save_file

    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not info[kind], f"{folder}: {kind} {info[kind]}"
    torch.manual_seed(5)
    ids = torch.randint(0, model.config.vocab_size, (3, 32))
    result = model(input_ids=ids, labels=ids)
    result.loss.backward()
    tensors = {"input_ids": ids.to(torch.int32), "logits": result.logits, "loss": result.loss.reshape(1)}
    for name, parameter in model.named_parameters():
        if parameter.numel():  # shared experts of width 0 have nothing
            tensors["grad." + name] = parameter.grad
    case = folder / "case.safetensors"
    save_file({name: t.detach().clone().contiguous() for name, t in tensors.items()}, case)
    return type(model).__name__, case


def dense_folder(folder):
    """A dense Qwen3 as transformers itself saves one."""
    import torch
    import transformers

    torch.manual_seed(1)
    config = transformers.Qwen3Config(vocab_size=90, hidden_size=24, intermediate_size=40, num_hidden_layers=2,
                                      num_attention_heads=4, num_key_value_heads=2, head_dim=8,
                                      max_position_embeddings=64, tie_word_embeddings=True)
    transformers.Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


def check(ananke, source, work):
    work.mkdir()
    model = run(ananke, "import", source)
    (work / "job.textproto").write_text(JOB.format(model=model))
    run(ananke, "run", work / "job.textproto", "--ranks", 2, "--run-dir", work / "run")
    for dtype, shard in (("fp32", "40kB"), ("bf16", "5GB")):
        folder = work / dtype
        run(ananke, "export", work / "run", "--output", folder, "--dtype", dtype, "--shard-size", shard)
        architecture, case = record_case(folder)
        print(f"{source.name} as {dtype}: {architecture}, {len(list(folder.glob('model*.safetensors')))} files")
        print(run(ananke, "parity", folder, case, "--ranks", 2, "--logits-tolerance", 1e-5))


TEXTS = ["the cat sat on   the mat\nnext", " leading", "trailing  ", "très Bien À ﬁ １２\t", "日本語 🎉", "", "a\r\nb"]


def check_tokenizer(ananke, kind, work):
    """A tokenizer that was trained here cuts texts in transformers as it does in the store."""
    import sentencepiece
    import transformers

    work.mkdir()
    text = pathlib.Path(__file__).parents[2] / "README.md"
    run(ananke, "data", "import", "--format", "text", "--tokenizer", work / "t.model", "--train-tokenizer", 700,
        "--train-type", kind, "-o", work / "t.h5", text)
    model = ("model { vocab_size: 700 hidden_size: 16 num_hidden_layers: 1 num_attention_heads: 2 head_dim: 8 "
             "intermediate_size: 16 }")
    job = JOB.format(model=model).replace("generated { documents: 64 shortest: 8 longest: 64 }",
                                          f'tokens: "{work / "t.h5"}"')
    (work / "job.textproto").write_text(job)
    run(ananke, "run", work / "job.textproto", "--ranks", 2, "--run-dir", work / "run")
    run(ananke, "export", work / "run", "--output", work / "hf")
    ours = sentencepiece.SentencePieceProcessor(model_file=str(work / "t.model"))
    theirs = transformers.AutoTokenizer.from_pretrained(work / "hf")
    assert len(theirs) == 700 and theirs.eos_token_id == ours.eos_id(), theirs
    for text in TEXTS + [text.read_text()]:
        ids = ours.encode(text)
        assert theirs(text).input_ids == ids, (kind, text, ids)
        assert theirs.decode(ids) == text, (kind, text)
    print(f"tokenizer of kind {kind}: the same tokens in transformers")


def main():
    ananke, golden, part = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3]
    with tempfile.TemporaryDirectory() as temporary:
        temporary = pathlib.Path(temporary)
        if part == "tokenizers":
            for kind in ("bpe", "unigram"):
                check_tokenizer(ananke, kind, temporary / kind)
            return
        sources = [golden / name for name in ("qwen3_moe_a", "qwen3_moe_dense_mix", "qwen3_moe_tied_mqa", "qwen3_moe_auxiliary", "dots1")]
        for source in sources + [dense_folder(temporary / "qwen3_dense")]:
            check(ananke, source, temporary / ("work_" + source.name))


if __name__ == "__main__":
    find_python()
    main()
