// Writes the small model of speech to video that tests use, and a sound for it, for
// tests/signature.py.
#include <cstdio>

#include "tests/support/speech_model.h"

int main(int count, char** arguments) {
  if (count != 3) {
    std::fprintf(stderr, "usage: write_speech_model FOLDER SOUND.wav\n");
    return 2;
  }
  new weft::test::SpeechModel(arguments[1]);  // whose end would remove the folder
  weft::test::write_wav(arguments[2], 16000, weft::test::tone(2, 16000));
  return 0;
}
