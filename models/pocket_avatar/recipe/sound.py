"""Sound made to resemble speech (syllables of known vowels, several voices, pauses), and the signal that the avatar is
driven with: one row of 37 numbers per picture, of the sound, the state, and what lids and eyes are to do."""
import os, shutil, subprocess, tempfile
import numpy as np

RATE, HOP, WINDOW, BANDS, COLUMNS = 16000, 640, 1024, 32, 37
STATES = ("idle", "listening", "speaking")
# The first three formants of each vowel in Hz, and the shape of the lips that goes with it.
VOWELS = {"a": (760, 1250, 2550, "open"), "o": (560, 920, 2450, "round"), "u": (330, 720, 2300, "round"),
          "e": (480, 2000, 2650, "wide"), "i": (300, 2300, 3000, "wide"), "ae": (700, 1600, 2500, "open")}
WIDTHS = np.array([80.0, 110.0, 160.0])  # bandwidths of the formants in Hz


def edges():
    """The corners of the bands in Hz, equally spaced in mel between 60 and 7600 Hz."""
    mel = lambda f: 2595 * np.log10(1 + f / 700)
    return 700 * (10 ** (np.linspace(mel(60), mel(7600), BANDS + 2) / 2595) - 1)


E = edges()
F = np.arange(WINDOW // 2 + 1) * RATE / WINDOW
FILTERS = np.maximum(0, np.minimum((F - E[:-2, None]) / (E[1:-1] - E[:-2])[:, None],
                                   (E[2:, None] - F) / (E[2:] - E[1:-1])[:, None]))
HANN = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW) / WINDOW)  # periodic; its squares sum to 384


def bands(s):
    """s: samples at 16 kHz, full scale 1. Float32 [pictures, 32]: logarithms of the power in mel bands of the 1024
    samples that end with each picture's last."""
    pictures = -(-len(s) // HOP)
    s = np.concatenate([np.zeros(WINDOW - HOP), s, np.zeros(pictures * HOP - len(s))])
    x = np.lib.stride_tricks.sliding_window_view(s, WINDOW)[::HOP][:pictures] * HANN
    energy = (np.abs(np.fft.rfft(x, axis=1)) ** 2) @ FILTERS.T / 384
    return np.clip((np.log(1e-6 + energy) + 7) / 4, -2, 4).astype(np.float32)


def gestures(words, state):
    """float32 [len(state), 2]: whether the lids blink in each picture (0 or 1), and the gaze (-1 left, 0, 1 right). Both keep
    to latent frames: a blink takes the four pictures of one. `words` yields random numbers of 32 bits, two for a blink's
    wait or a gaze; state: of each of 4 k + 1 pictures, as an index into STATES."""
    out = np.zeros((len(state), 2), np.float32)
    below = lambda n: next(words) * n >> 32
    wait, hold, look = 1 + below(20), 0, 0
    for f, first in enumerate(range(0, len(state) + 3, 4)):
        at = slice(max(first - 3, 0), first + 1)
        idle = state[first] == STATES.index("idle")
        # It blinks when it has stopped to speak, and now and then.
        if f > 0 and (wait == 0 or state[first] != 2 == state[first - 4]):
            out[at, 0], wait = 1, 8 + below(20)
        else:
            wait -= wait > 0
        if idle and hold == 0:  # it looks around when idle
            hold, look = 4 + below(7), (-1, 0, 0, 1)[below(4)]
        hold = hold - 1 if idle else 0
        out[at, 1] = look if idle else 0
    return out


def chance(rng):
    """Words for gestures()."""
    while True:
        yield int(rng.integers(2 ** 32))


def rows(s, state, gesture):
    """The signal, float32 [len(state), 37]: the bands, three flags and the gestures. state: of each picture, as an index
    into STATES."""
    return np.concatenate([bands(s)[:len(state)], np.eye(3, dtype=np.float32)[state], gesture], 1)


def latent_rows(row):
    """Rows of 4 k + 1 pictures as those of k + 1 latent frames, [k + 1, 148]: each has its four pictures', and before the
    first picture it is idle and silent."""
    before = rows(np.zeros(3 * HOP), np.zeros(3, int), np.zeros((3, 2), np.float32))
    return np.concatenate([before, row]).reshape(-1, 4 * COLUMNS)


def level(row):
    """How loud a picture's sound is, 0 to 1, from its bands [..., 32 or more]: root mean square over full scale, bent."""
    energy = np.maximum(np.exp(4 * row[..., :BANDS].astype(np.float64) - 7) - 1e-6, 0)
    return np.clip(1.08 * (np.sqrt(energy.sum(-1) / (WINDOW / 2)) / 0.2) ** 0.6 - 0.08, 0, 1)


def mix(row, low, high):
    """Mean of the bands that have their peak between two frequencies."""
    peak = E[1:-1]
    return row[..., :BANDS][..., (peak >= low) & (peak <= high)].mean(-1)


def width(row):
    """How wide the lips are, from -1 (round) over 0 (open) to 1, [...]: the lower the first formant, the farther from 0;
    which way, from how much of the second lies above 1800 Hz."""
    soft = lambda x: 1 / (1 + np.exp(-np.clip(x, -30, 30)))
    tall = soft(10 * (mix(row, 600, 1000) - mix(row, 220, 420) + 0.2))
    front = soft(6 * (mix(row, 1900, 2900) - mix(row, 650, 1150) + 0.85))
    return (1 - tall) * (2 * front - 1)


def varied(row, rng):
    """Rows [pictures, 37] as another voice, another microphone and consonants would make them, with the same level() where
    the face speaks: the avatar is to follow real speech, whose spectra are not those of speech() below."""
    row, talks = row.copy(), row[:, BANDS + 2] > 0
    n, place = int(talks.sum()), np.linspace(0, 1, BANDS)
    if n == 0 or rng.random() < 0.15:
        return row
    energy = np.maximum(np.exp(4 * row[talks, :BANDS].astype(np.float64) - 7) - 1e-6, 0)
    total = energy.sum(1, keepdims=True)
    # A smooth curve over the bands, up to 20 dB either way.
    knots = rng.uniform(-2.3, 2.3, 5) * rng.uniform(0, 1)
    energy *= np.exp(np.interp(place, np.linspace(0, 1, 5), knots))
    # Breath and high partials: a part of each picture's energy, spread over the upper bands.
    high = 1 / (1 + np.exp(-(place - rng.uniform(0.3, 0.9)) * 20))
    energy += high / high.sum() * total * 10 ** rng.uniform(-3, 0)
    energy *= total / np.maximum(energy.sum(1, keepdims=True), 1e-12)
    # Consonants: a hiss in some pictures, for which the mouth does not open.
    hiss = np.where(rng.random(n) < rng.uniform(0, 0.25), 10 ** rng.uniform(-2.5, 1.0, n), 0)
    energy += hiss[:, None] * high / high.sum() * np.median(total)
    energy += 10 ** rng.uniform(-7, -4)  # the room
    row[talks, :BANDS] = np.clip((np.log(1e-6 + energy) + 7) / 4, -2, 4)
    return row


def loudness(s):
    """level() of each picture of samples."""
    return level(bands(s))


def shape(s):
    """width() of each picture of samples."""
    return width(bands(s))


def resonance(f, formants):
    """Gain of a vocal tract at frequencies f [k, n], formants [n, 3]."""
    g = np.ones(f.shape)
    for j in range(3):
        c, b = formants[:, j], WIDTHS[j]
        g *= c * c / np.sqrt((f * f - c * c) ** 2 + (b * f) ** 2)
    return g


def speech(rng, n):
    """n samples of one voice: syllables with pauses between groups of them."""
    step = 80  # the contours have 200 points a second
    m = n // step + 2
    power, formants, hiss = np.zeros(m), np.zeros((m, 3)), np.zeros(m)
    pitch0, tract = rng.uniform(85, 240), rng.uniform(0.92, 1.15)
    names, at = list(VOWELS), int(rng.integers(0, 40))
    rate, group = rng.uniform(0.7, 1.3), int(rng.integers(3, 10))
    formants[:] = np.array(VOWELS["a"][:3]) * tract
    while at < m:
        long = int(rng.uniform(18, 55) * rate)
        vowel = np.array(VOWELS[names[rng.integers(len(names))]][:3]) * tract * rng.uniform(0.95, 1.05)
        begin = int(long * rng.uniform(0.1, 0.35))
        k = np.arange(max(long - begin, 4))
        arc = np.sin(np.pi * np.minimum((k + 0.5) / len(k), 1)) ** rng.uniform(0.4, 1.2) * rng.uniform(0.35, 1)
        cut = slice(at + begin, min(at + begin + len(k), m))
        if cut.start < m:
            power[cut] = arc[:cut.stop - cut.start]
            formants[at:] = vowel
        if rng.random() < 0.5:
            hiss[at:at + begin] = rng.uniform(0.02, 0.25)
        at += long
        group -= 1
        if group <= 0:
            at += int(rng.uniform(20, 160))
            group = int(rng.integers(3, 12))
    soft = np.hanning(9) / np.hanning(9).sum()
    formants = np.stack([np.convolve(np.pad(formants[:, j], 4, mode="edge"), soft, "valid") for j in range(3)], 1)
    power, hiss = np.convolve(power, soft, "same"), np.convolve(hiss, np.ones(5) / 5, "same")
    t = np.arange(m)
    pitch = pitch0 * (1 + 0.12 * np.sin(t / rng.uniform(25, 70) + rng.uniform(0, 6)) + 0.01 * rng.standard_normal(m).cumsum() / 10)
    pitch = np.clip(pitch, 70, 320)
    count = int(3800 / pitch0)
    f = pitch * np.arange(1, count + 1)[:, None]
    amplitude = resonance(f, formants) / np.arange(1, count + 1)[:, None] ** rng.uniform(0.8, 1.3)
    amplitude *= power / np.sqrt((amplitude ** 2).sum(0) + 1e-9)
    fine, coarse = np.arange(n) / step, np.arange(m)
    phase = 2 * np.pi * np.cumsum(np.interp(fine, coarse, pitch)) / RATE
    s = np.zeros(n)
    one = np.exp(1j * phase)
    turn = one.copy()
    for k in range(count):  # harmonic k + 1 is the last times the first
        s += np.interp(fine, coarse, amplitude[k]) * turn.imag
        turn *= one
    noise = np.diff(rng.standard_normal(n + 2), 2)  # rises with the frequency, as s and f do
    s += np.interp(fine, coarse, hiss) * noise * 0.3
    return s * rng.uniform(0.08, 0.4) + rng.standard_normal(n) * 10 ** rng.uniform(-4.5, -2.8)


def spoken(text, voice="en", speed=175, pitch=50):
    """Synthetic speech at 16 kHz through espeak-ng, or None where it is not installed. Words a minute; pitch 0 to 99."""
    if not shutil.which("espeak-ng"):
        return None
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "a.wav")
        subprocess.run(["espeak-ng", "-v", voice, "-s", str(speed), "-p", str(pitch), "-w", path, text], check=True)
        return read_wav(path)


# Words of every vowel and consonant. Sentences of sample.py are none of what said() draws from them.
SPOKEN = ("water garden yellow quick under mother seven father letter stone morning paper little house evening green boat judge "
          "thing measure church window apple summer every question answer river mountain language music orange between nothing "
          "always people never follow another picture table children winter number sound story often carry begin above money "
          "village animal power sentence idea early enough watch far real almost above later open example paper together").split()
LANGUAGES = ("en", "en-us", "en-gb-scotland", "en-gb-x-rp", "de", "fr-fr", "es", "it", "nl", "sv")
VARIANTS = ("", "+m1", "+m3", "+m5", "+m7", "+f1", "+f2", "+f4")


def said(rng, n):
    """n samples of words in a random order that a random voice of espeak-ng says, with pauses, as loud as speech()."""
    if not shutil.which("espeak-ng"):
        raise SystemExit("espeak-ng is not installed; with --real 0 all voices are made up")
    pick = lambda a: a[int(rng.integers(len(a)))]
    voice, speed, pitch = pick(LANGUAGES) + pick(VARIANTS), int(rng.integers(120, 210)), int(rng.integers(15, 90))
    s = np.zeros(int(rng.uniform(0, 0.3) * RATE))
    while len(s) < n:
        text = " ".join(pick(SPOKEN) + (pick((",", ".")) if rng.random() < 0.15 else "") for _ in range(12))
        s = np.concatenate([s, spoken(text, voice, speed, pitch), np.zeros(int(rng.uniform(0, 0.5) * RATE))])
    return s[:n] / s[:n].std() * rng.uniform(0.05, 0.16) + rng.standard_normal(n) * 10 ** rng.uniform(-4.5, -2.8)


def read_wav(path):
    """Mono samples at 16 kHz of a 16-bit WAV file, by linear interpolation."""
    import wave
    with wave.open(path) as w:
        s = np.frombuffer(w.readframes(w.getnframes()), "<i2").reshape(-1, w.getnchannels()).mean(1) / 32768
        rate = w.getframerate()
    return np.interp(np.arange(int(len(s) * RATE / rate)) * rate / RATE, np.arange(len(s)), s)


def states(rng, blocks):
    """A state for each block: a few blocks of one, then another; half of the streams only speak."""
    if rng.random() < 0.5:
        return [2] * blocks
    out = []
    while len(out) < blocks:
        s = int(rng.choice(3, p=(0.25, 0.25, 0.5)))
        out += [s] * int(rng.integers(1, 6))
    return out[:blocks]


def drawn(rng, blocks, pictures=12, real=0.0):
    """A stream of so many blocks: its samples, the state of each picture, and its gestures. The first three pictures of the
    first block are none: the VAE's first latent frame stands for one. real: the share that said() speaks."""
    kind, n = states(rng, blocks), pictures * HOP
    voice = said if rng.random() < real else speech
    s, at = np.zeros(blocks * n), 0
    while at < blocks:
        end = at
        while end < blocks and kind[end] == kind[at]:
            end += 1
        if kind[at] == 2:
            s[at * n:end * n] = voice(rng, (end - at) * n)
        at = end
    s = np.round(s.clip(-1, 1) * 32767) / 32768
    state = np.repeat(kind, pictures)[3:]
    return s[3 * HOP:], state, gestures(chance(rng), state)


if __name__ == "__main__":
    import time
    t, rng = time.time(), np.random.default_rng(0)
    loud = np.concatenate([loudness(drawn(rng, 8, real=0.4)[0]) for _ in range(20)])
    print("seconds of sound per second %.0f" % (20 * 8 * 0.48 / (time.time() - t)))
    print("loudness: deciles", np.quantile(loud, np.linspace(0.1, 0.9, 9)).round(2))
    print("silence", bands(np.zeros(HOP))[0, 0], "a full-scale sine", bands(np.sin(np.arange(RATE) * 2 * np.pi * 1000 / RATE)).max())
    for name, (a, b, c, kind) in VOWELS.items():
        out = []
        for pitch in (90, 130, 200):
            f = pitch * np.arange(1, 3800 // pitch)[:, None]
            g = resonance(f, np.array([[a, b, c]])) / np.arange(1, len(f) + 1)[:, None]
            s = (g * np.sin(2 * np.pi * f * np.arange(RATE) / RATE)).sum(0)
            out.append(round(float(shape(0.1 * s / s.std())[2:].mean()), 2))
        print(name, kind, out)
