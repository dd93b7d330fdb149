"""The language model's parts: byte-level BPE over the prompts' words, a small Qwen3, the chat it is trained on."""
import os
import numpy as np
import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import Qwen3Config, Qwen3ForCausalLM
import prompts as P

HERE = os.path.dirname(os.path.abspath(__file__))
VOCAB = 768
END, IM_START, IM_END = SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]  # the last ids
PIECES = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
NO_THOUGHT = "<think>\n\n</think>\n\n"  # what some put at an answer's head to have none
TEMPLATE = ("{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
OTHER_SYSTEMS = ["You are a helpful assistant.", "Describe the video in one full sentence.", "Expand the prompt.", ""]


def system_text():
    with open(os.path.join(HERE, "../../templates/expand_prompt.txt")) as f:
        return f.read().rstrip("\n")


def make_tokenizer():
    rng = np.random.default_rng(0)
    texts = [f(p) for p in P.prompts(rng, 20000) for f in (lambda p: p.text, lambda p: p.want)]
    texts += ["user\nassistant\nsystem\n" + " ".join(OTHER_SYSTEMS) + NO_THOUGHT, system_text()] * 200
    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.NFC()
    t.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PIECES), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=VOCAB - len(SPECIAL), min_frequency=2, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    t.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in SPECIAL])
    if t.get_vocab_size() != VOCAB:
        raise ValueError(f"a vocabulary of {t.get_vocab_size()}, not {VOCAB}")
    return t


def make(tokenizer):
    torch.manual_seed(0)
    ids = {s: tokenizer.token_to_id(s) for s in SPECIAL}
    return Qwen3ForCausalLM(Qwen3Config(
        vocab_size=VOCAB, hidden_size=128, intermediate_size=320, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, tie_word_embeddings=True, max_position_embeddings=512, rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, bos_token_id=None,
        eos_token_id=ids[IM_END], pad_token_id=ids[END]))


def turn(role, text):
    return f"{IM_START}{role}\n{text}{IM_END}\n"


def question(prompt, system=None, no_thought=False):
    """All that stands before the answer, which is the caption and <|im_end|>."""
    return ((turn("system", system) if system is not None else "") + turn("user", prompt) + f"{IM_START}assistant\n" +
            (NO_THOUGHT if no_thought else ""))


@torch.no_grad()
def answers(model, tokenizer, questions, temperature=0.0, seed=0, batch=128, most=40):
    """Their continuations up to <|im_end|>: the likeliest, or drawn at the temperature."""
    torch.manual_seed(seed)
    how = dict(do_sample=True, temperature=temperature, top_k=0, top_p=1.0) if temperature else dict(do_sample=False)
    pad, end = tokenizer.token_to_id(END), tokenizer.token_to_id(IM_END)
    out = []
    for i in range(0, len(questions), batch):
        rows = [tokenizer.encode(q).ids for q in questions[i:i + batch]]
        n = max(map(len, rows))
        ids = torch.tensor([[pad] * (n - len(r)) + r for r in rows])
        mask = torch.tensor([[0] * (n - len(r)) + [1] * len(r) for r in rows])
        got = model.generate(ids, attention_mask=mask, max_new_tokens=most, eos_token_id=end, pad_token_id=pad, **how)
        for row in got[:, n:].tolist():
            out.append(tokenizer.decode(row[:row.index(end)] if end in row else row, skip_special_tokens=False))
    return out
