#include "apps/stream/sound_input.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "apps/generate/request_flags.h"
#include "apps/scratch_folder.h"
#include "io/sound/audio_features.h"

namespace weft {
namespace {

// Runs a program that is searched for in PATH, without its output. Returns its exit status, or -1
// where it cannot be started.
int run_quietly(std::vector<std::string> arguments) {
  std::vector<char*> texts;
  for (std::string& argument : arguments) texts.push_back(argument.data());
  texts.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  for (const int output : {STDOUT_FILENO, STDERR_FILENO})
    posix_spawn_file_actions_addopen(&files, output, "/dev/null", O_WRONLY, 0);
  pid_t child = 0;
  const int error = posix_spawnp(&child, texts[0], &files, nullptr, texts.data(), environ);
  posix_spawn_file_actions_destroy(&files);
  if (error != 0) return -1;
  int status = 0;
  while (waitpid(child, &status, 0) < 0)
    if (errno != EINTR) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::unique_ptr<SoundSource> standard_pcm(const Flags& flags) {
  if (isatty(STDIN_FILENO))
    throw Error(ErrorKind::kUsage,
                "--live reads PCM samples from standard input, which is a terminal; legal: a pipe "
                "or a file, or --render FILE or --say TEXT beside --live");
  const PcmFormat format = flags.text("pcm-format") == "f32" ? PcmFormat::kF32 : PcmFormat::kS16;
  const auto rate = static_cast<int>(*flags.integer("pcm-rate"));
  return resampled(pcm_from(STDIN_FILENO, format, rate), SoundBands::kRate);
}

}  // namespace

Sound spoken(const std::string& text, const std::string& voice, int rate) {
  const ScratchFolder scratch;
  const std::string words = scratch.file("words.txt"), wave = scratch.file("speech.wav");
  std::ofstream(words) << text << "\n";
  const int code = run_quietly({"espeak-ng", "-v", voice, "-f", words, "-w", wave});
  if (code == -1 || code == 127)
    throw Error(ErrorKind::kUsage,
                "--say needs espeak-ng, which is not installed (apt-get install espeak-ng); legal "
                "without it: --render FILE");
  if (code != 0)
    throw Error(ErrorKind::kUsage, "espeak-ng ended with exit code " + std::to_string(code) +
                                       " for --voice '" + voice +
                                       "'; legal voices: those of espeak-ng --voices");
  return read_all(*open_sound(wave, rate));
}

std::unique_ptr<SoundSource> sound_of(const Flags& flags) {
  const bool renders = flags.given("render"), says = flags.given("say"), live = flags.on("live");
  if (renders && says)
    throw Error(ErrorKind::kUsage, flags.label("render") + " and " + flags.label("say") +
                                       " are both given; legal: one sound");
  for (const char* of_pcm : {"pcm-format", "pcm-rate"})
    if (flags.given(of_pcm) && (!live || renders || says))
      throw Error(ErrorKind::kUsage, flags.label(of_pcm) +
                                         " describes standard input, which is read under --live "
                                         "without --render and --say");
  if (flags.given("voice") && !says)
    throw Error(ErrorKind::kUsage, flags.label("voice") + " is legal beside --say");
  if (renders) return open_sound(flags.text("render"), SoundBands::kRate);
  if (says) {
    const std::string text = text_argument(flags, "say");
    if (text.find_first_not_of(" \t\r\n") == std::string::npos)
      throw Error(ErrorKind::kUsage, flags.label("say") + " is empty; legal: a text");
    return sound_in_memory(spoken(text, flags.text("voice"), SoundBands::kRate));
  }
  if (live) return standard_pcm(flags);
  throw Error(ErrorKind::kUsage,
              "no sound is given; legal: --render FILE, --say TEXT, or --live for PCM samples on "
              "standard input");
}

}  // namespace weft
