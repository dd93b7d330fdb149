"""Train the language model for a given number of minutes and write its folder; run again with the same --out to resume."""
import argparse, json, os, time
import numpy as np
import torch
from safetensors.torch import save_file
import language as L, prompts as P
from muon import Muon

ap = argparse.ArgumentParser()
ap.add_argument("--out", default="work")
ap.add_argument("--to", default="../language", help="the folder of config.json")
ap.add_argument("--minutes", type=float, default=57)
ap.add_argument("--batch", type=int, default=64)
ap.add_argument("--lr", type=float, default=0.02)
ap.add_argument("--decay", type=float, default=0.5, help="last fraction of the time, in which the rate falls to zero")
ap.add_argument("--average", type=float, default=0.998)
ap.add_argument("--threads", type=int, default=1)
ap.add_argument("--stop", type=float, default=0, help="seconds since the epoch: save and leave then, to be resumed")
args = ap.parse_args()
torch.set_num_threads(args.threads)
os.makedirs(args.out, exist_ok=True)
path, words = os.path.join(args.out, "language.pt"), os.path.join(args.out, "tokenizer.json")
if not os.path.exists(words):
    L.make_tokenizer().save(words)
tok = L.Tokenizer.from_file(words)
model = L.make(tok)
params = list(model.parameters())
matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed_tokens" not in n]
chosen = {id(p) for p in matrices}
opt = Muon(matrices, [p for p in params if id(p) not in chosen], lr=args.lr, other_lr=3e-3, weight_decay=0.05)
ema, step, spent = [p.detach().clone() for p in params], 0, 0.0
if os.path.exists(path):
    s = torch.load(path, weights_only=False)
    model.load_state_dict(s["model"]); opt.load_state_dict(s["opt"])
    ema, step, spent = s["ema"], s["step"], s["spent"]
print(f"{sum(p.numel() for p in params)} parameters, step {step}, {spent / 60:.1f} minutes", flush=True)
rng = np.random.default_rng(1000 + step)
PAD, SYSTEM = tok.token_to_id(L.END), L.system_text()


def batch(count, system, no_thought):
    """Ids and labels of chats, without the system turn when that is `system` itself, which all of them share."""
    rows = []
    for p in P.prompts(rng, count, lambda p: not p.held_wording() and not p.held_combination()):
        q = tok.encode(L.question(p.text, None if system == SYSTEM else system, no_thought)).ids
        rows.append((q, tok.encode(p.want + L.IM_END).ids))
    n = max(len(q) + len(a) for q, a in rows)
    ids, labels = torch.full((count, n), PAD), torch.full((count, n), -100)
    for i, (q, a) in enumerate(rows):
        ids[i, :len(q) + len(a)] = torch.tensor(q + a)
        labels[i, len(q):len(q) + len(a)] = torch.tensor(a)
    return ids, labels


def loss_of(count, system, no_thought=False):
    ids, labels = batch(count, system, no_thought)
    past = None
    if system == SYSTEM:  # the turn that all share is computed once
        past = model(torch.tensor([tok.encode(L.turn("system", SYSTEM)).ids]), use_cache=True).past_key_values
        past.batch_repeat_interleave(count)
    logits = model(ids[:, :-1], past_key_values=past).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)


def save():
    torch.save(dict(model=model.state_dict(), opt=opt.state_dict(), ema=ema, step=step, spent=spent), path + ".tmp")
    os.replace(path + ".tmp", path)


def export():
    for p, e in zip(params, ema):
        p.data.copy_(e)
    model.to(torch.bfloat16)
    os.makedirs(args.to, exist_ok=True)
    model.config.dtype, model.config.architectures = torch.bfloat16, ["Qwen3ForCausalLM"]
    model.config.save_pretrained(args.to)
    save_file({k: v.contiguous() for k, v in model.state_dict().items() if k != "lm_head.weight"},
              os.path.join(args.to, "model.safetensors"), metadata={"format": "pt"})
    tok.save(os.path.join(args.to, "tokenizer.json"))
    for name, what in (("generation_config", {"do_sample": False, "eos_token_id": tok.token_to_id(L.IM_END),
                                              "pad_token_id": PAD, "transformers_version": "5.23.0"}),
                       ("tokenizer_config", {"tokenizer_class": "Qwen2Tokenizer", "model_max_length": 512,
                                             "bos_token": None, "eos_token": L.IM_END, "pad_token": L.END,
                                             "unk_token": None, "add_prefix_space": False,
                                             "chat_template": L.TEMPLATE})):
        with open(os.path.join(args.to, name + ".json"), "w") as f:
            json.dump(what, f, indent=2)
            f.write("\n")


total, log, last = args.minutes * 60, [], time.time()
saved = last
while spent < total and not (args.stop and time.time() > args.stop):
    few = args.batch // 4
    other = rng.choice(["none", "none", "thought", "system"])
    opt.zero_grad()
    parts = [(args.batch - few, SYSTEM, bool(rng.random() < 0.15)),
             (few, str(rng.choice(L.OTHER_SYSTEMS)) if other == "system" else None, other == "thought")]
    loss = 0
    for count, system, no_thought in parts:
        part = loss_of(count, system, no_thought) * (count / args.batch)
        part.backward()
        loss += part.item()
    torch.nn.utils.clip_grad_norm_(params, 1.0)
    lr = min(1, (step + 1) / 50) * min(1, (1 - spent / total) / args.decay)
    opt.step(lr)
    step += 1
    k = min(args.average, (step + 1) / (step + 20))
    with torch.no_grad():
        torch._foreach_lerp_(ema, [p.detach() for p in params], 1 - k)
    now = time.time()
    spent, last = spent + min(now - last, 120), now
    log.append(loss)
    if step % 50 == 0:
        print(f"step {step} min {spent / 60:.1f}/{total / 60:.1f} lr {lr:.3f} loss {np.mean(log):.4f}", flush=True)
        log = []
    if now - saved > 60:
        save()
        saved = now
save()
export()
print("done", step)
