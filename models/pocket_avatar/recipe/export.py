"""Write the whole model, in bfloat16, as a diffusers folder."""
import argparse, json, os
import torch
import sentencepiece
from diffusers import FlowMatchEulerDiscreteScheduler
from safetensors.torch import save_file
import common as C
import avatar as A, dit as D, face as F, make_tokenizer, sound as S, vae as V

ap = argparse.ArgumentParser()
ap.add_argument("--out", default="work")
ap.add_argument("--to", default=C.EXPORT, help="the folder of model_index.json")
ap.add_argument("--vae-only", action="store_true", help="the transformer is not trained yet")
a = ap.parse_args()


def folder(name):
    d = os.path.join(a.to, name)
    os.makedirs(d, exist_ok=True)
    return d


def write(name, state):
    save_file({k: v.to(torch.bfloat16).contiguous() for k, v in state.items()},
              os.path.join(folder(name), "diffusion_pytorch_model.safetensors"), metadata={"format": "pt"})


def write_json(name, value):
    with open(os.path.join(a.to, name), "w") as f:
        json.dump(value, f, indent=2)
        f.write("\n")


vae = V.make()
vae.load_state_dict(torch.load(os.path.join(a.out, "vae.pt"), weights_only=False)["model"])
stats = torch.load(os.path.join(a.out, "stats.pt"))
vae.register_to_config(latents_mean=[round(x, 5) for x in stats["mean"].tolist()],
                       latents_std=[round(x, 5) for x in stats["std"].tolist()])
vae.save_config(folder("vae"))
write("vae", vae.state_dict())
if a.vae_only:
    raise SystemExit

s = torch.load(os.path.join(a.out, "avatar.pt"), weights_only=False)
model = A.Avatar(**D.size({k[4:]: v for k, v in s["model"].items() if k.startswith("dit.")}))
for p, value in zip(model.parameters(), s["average"]):
    p.data.copy_(value)
print("step", s["step"])
model.dit.save_config(folder("transformer"))
config = json.load(open(os.path.join(a.to, "transformer", "config.json")))
write_json("transformer/config.json", {**config, "audio_dim": 4 * S.COLUMNS})
heard = {"condition_embedder.audio_embedder." + k: v for k, v in model.audio_embedder.state_dict().items()}
write("transformer", {**model.dit.state_dict(), **heard})
model.text.to(torch.bfloat16).save_pretrained(folder("text_encoder"))
make_tokenizer.main(folder("tokenizer"), F.WORDS)
FlowMatchEulerDiscreteScheduler(shift=3.0).save_config(folder("scheduler"))
write_json("model_index.json", {
    "_class_name": "WanPipeline", "_diffusers_version": "0.42.1", "boundary_ratio": None, "expand_timesteps": False,
    "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"], "text_encoder": ["transformers", "UMT5EncoderModel"],
    "tokenizer": ["transformers", "T5TokenizerFast"], "transformer": ["diffusers", "WanTransformer3DModel"],
    "transformer_2": [None, None], "vae": ["diffusers", "AutoencoderKLWan"]})
write_json("weft.json", {"width": F.SIZE, "height": F.SIZE, "num_frames": 69, "fps": S.RATE // S.HOP, "steps": len(C.TIMES),
                         "guidance_scale": 1.0, "flow_shift": 3.0, "stream": {
                             "caption": "a {mood} face with tan skin and black hair on a blue background",
                             "moods": list(F.MOODS), "block_frames": 3, "window_frames": 12}})

# The folder must say what the training said.
pieces = sentencepiece.SentencePieceProcessor(model_file=os.path.join(a.to, "tokenizer", "spiece.model"))
assert pieces.get_piece_size() == model.text.config.vocab_size, (pieces.get_piece_size(), model.text.config.vocab_size)
for look in F.looks():
    ids = [i for i in A.captions([F.caption(look)])[0].tolist() if i]
    assert pieces.encode(F.caption(look)) + [1] == ids, (F.caption(look), ids)
read = A.exported(a.to).state_dict()
assert all(torch.equal(v.to(torch.bfloat16), read[k].to(torch.bfloat16)) for k, v in model.state_dict().items())
parts = ("vae", "transformer", "text_encoder", "tokenizer", "scheduler")
size = sum(os.path.getsize(os.path.join(a.to, p, f)) for p in parts for f in os.listdir(os.path.join(a.to, p)))
assert size <= 16 << 20, size
print(f"{size / 2 ** 20:.1f} MiB")
