// Measures how well a model draws its prompts, by reading its clips.
//   clip_score --prompts N [SEED]      prints N prompts, trained and held-out combinations in turn
//   clip_score --draw N FOLDER/        writes the first N sample clips as FOLDER/00/00000.png ...
//   clip_score CLIP...                 reads each clip and the prompt in its metadata; prints each
//                                      that is wrong or torn, and the table
// The table's shares: "shape" fits the six views together, "in all" each of them for itself;
// "right" has colour, ground, shape and motion as asked; "torn" has a view that no ideal shape
// fits.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "io/media/media_probe.h"
#include "io/media/video.h"
#include "kernels/check.h"
#include "tests/bench/pocket/clip_reader.h"
#include "tests/support/clip.h"

namespace weft::pocket {
namespace {

void draw_samples(int count, const std::string& folder) {
  for (int i = 0; i < count; ++i) {
    VideoSettings settings;
    settings.width = settings.height = 128;
    const std::string name = (i < 10 ? "0" : "") + std::to_string(i) + "/";
    const auto sink = make_sink(folder + name, settings, Overwrite::kReplace);
    for (const Frame& frame : sample_clip(i).frames) sink->push(frame);
    sink->finish();
  }
}

struct Row {
  const char* name;
  int clips = 0, colour = 0, ground = 0, shape = 0, every_view = 0, motion = 0, all = 0, torn = 0;
  double overlap = 0;

  void add(const ClipScore& s, const ClipReading& reading) {
    ++clips;
    for (const View& view : reading.views)
      overlap += view.overlap / static_cast<double>(reading.views.size());
    colour += s.colour;
    ground += s.ground;
    shape += s.shape;
    every_view += s.every_view;
    torn += s.torn;
    motion += s.motion;
    all += s.colour && s.ground && s.shape && s.motion;
  }
  void print() const {
    const double percent = 100.0 / std::max(clips, 1);
    std::printf("%-9s %5d  %5.1f%% %6.1f%% %5.1f%% %5.1f%% %6.1f%% %6.1f%% %6.1f%% %7.3f\n", name,
                clips, colour * percent, ground * percent, shape * percent, every_view * percent,
                motion * percent, all * percent, torn * percent, overlap / std::max(clips, 1));
  }
};

// The prompt is the first line of the "parameters" text.
std::string prompt_in(const std::string& path) {
  const auto metadata = probe_media(path).metadata;
  const auto text = metadata.find("parameters");
  if (text == metadata.end())
    throw Error(ErrorKind::kMedia, "'" + path + "' has no \"parameters\" in its metadata");
  return text->second.substr(0, text->second.find('\n'));
}

template <class T>
std::string text_of(const std::optional<T>& value) {
  return value ? std::string(to_string(*value)) : "nothing";
}

void print_scores(const std::vector<std::string>& paths) {
  Row trained{"trained"}, held{"held out"}, all{"all"};
  for (const std::string& path : paths) {
    const std::string prompt = prompt_in(path);
    const auto words = parse_prompt(prompt);
    if (!words) throw Error(ErrorKind::kMedia, "'" + path + "': no clip prompt: " + prompt);
    const ClipReading reading = read_clip(read_video(path));
    const ClipScore s = score(reading, *words);
    all.add(s, reading);
    if (words->colour && words->shape && words->motion && words->ground) {
      const bool out =
          held_out({*words->colour, *words->shape, *words->motion, *words->ground, Size::kBig});
      (out ? held : trained).add(s, reading);
    }
    if (s.colour && s.ground && s.shape && s.every_view && s.motion && !s.torn) continue;
    std::printf("%s: %s -> %s %s, %s on %s; views", path.c_str(), prompt.c_str(),
                text_of(reading.colour).c_str(), text_of(reading.shape).c_str(),
                text_of(reading.motion).c_str(), std::string(to_string(reading.ground)).c_str());
    for (const View& view : reading.views)
      std::printf(" %s %.2f", std::string(to_string(view.shape)).c_str(), view.overlap);
    std::printf("%s\n", s.torn ? " (torn)" : "");
  }
  std::printf("%-9s %5s  %6s %7s %6s %6s %7s %7s %7s %7s\n", "", "clips", "colour", "ground",
              "shape", "in all", "motion", "right", "torn", "overlap");
  for (const Row& row : {trained, held, all}) row.print();
}

}  // namespace
}  // namespace weft::pocket

int main(int argc, char** argv) {
  try {
    if (argc >= 3 && std::strcmp(argv[1], "--prompts") == 0) {
      const uint64_t seed = argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 1;
      for (const auto& spec : weft::pocket::clips_in_turn(std::atoi(argv[2]), seed))
        std::printf("%s\n", prompt_of(spec).c_str());
      return 0;
    }
    if (argc == 4 && std::strcmp(argv[1], "--draw") == 0) {
      weft::pocket::draw_samples(std::atoi(argv[2]), argv[3]);
      return 0;
    }
    if (argc < 2) {
      std::fprintf(stderr, "usage: clip_score --prompts N [SEED] | --draw N FOLDER/ | CLIP...\n");
      return 2;
    }
    weft::pocket::print_scores({argv + 1, argv + argc});
    return 0;
  } catch (const weft::Error& error) {
    std::fprintf(stderr, "clip_score: %s\n", error.what());
    return static_cast<int>(error.kind());
  }
}
