"""Write tokenizer/ into the given folder: a unigram SentencePiece model whose pieces are the grammar's words, the
letters as a way out for other words, and SentencePiece's own NFKC + case folding table."""
import io, json, os, sys
import sentencepiece as spm
from sentencepiece import sentencepiece_model_pb2 as pb
import clips

MAX_LENGTH = 24
WORDS = (["a", "an", "on", "is", "background", "shape"] + list(clips.SIZES) + list(clips.COLOURS) + clips.SHAPES +
         sorted({w for m in clips.MOTIONS for w in m.split()}) + list(clips.GROUNDS))


def build(words):
    seed = io.BytesIO()
    letters = "abcdefghijklmnopqrstuvwxyz"
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter([" ".join(words), letters, ", ."] * 20), model_writer=seed, model_type="unigram",
        vocab_size=40, hard_vocab_limit=False, pad_id=0, eos_id=1, unk_id=2, bos_id=-1, num_threads=1, minloglevel=2,
        normalization_rule_name="nmt_nfkc_cf")
    m = pb.ModelProto()
    m.ParseFromString(seed.getvalue())
    kind = pb.ModelProto.SentencePiece
    del m.pieces[:]
    for text, score, t in ([("<pad>", 0.0, kind.CONTROL), ("</s>", 0.0, kind.CONTROL), ("<unk>", 0.0, kind.UNKNOWN)] +
                           [("\u2581" + w, -3.0, kind.NORMAL) for w in words] + [("\u2581", -4.0, kind.NORMAL)] +
                           [(c, -4.0, kind.NORMAL) for c in ",."] + [(c, -8.0, kind.NORMAL) for c in letters]):
        m.pieces.add(piece=text, score=score, type=t)
    m.trainer_spec.vocab_size = len(m.pieces)
    return m.SerializeToString()


def main(out, words=WORDS):
    os.makedirs(out, exist_ok=True)
    with open(os.path.join(out, "spiece.model"), "wb") as f:
        f.write(build(words))
    with open(os.path.join(out, "tokenizer_config.json"), "w") as f:
        json.dump({"tokenizer_class": "T5Tokenizer", "model_max_length": MAX_LENGTH, "extra_ids": 0,
                   "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}, f, indent=2)
        f.write("\n")


if __name__ == "__main__":
    main(sys.argv[1])
