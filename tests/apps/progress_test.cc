#include "apps/generate/progress.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "engine/job/stages.h"

namespace weft {
namespace {

TEST(Progress, PercentIsMonotoneOverAJobAndBelow100) {
  double last = -1;
  for (const auto& [stage, total] : std::vector<std::pair<std::string, int>>{{"load", 1},
                                                                             {"encode_text", 2},
                                                                             {"encode_image", 3},
                                                                             {"denoise", 20},
                                                                             {"decode", 7},
                                                                             {"encode_video", 1},
                                                                             {"write", 1}})
    for (int step = 0; step <= total; ++step) {
      Progress progress;
      progress.stage = stage;
      progress.step = step;
      progress.total = total;
      const double percent = overall_percent(progress);
      EXPECT_GE(percent, last) << stage << step;
      EXPECT_LT(percent, 100);
      last = percent;
    }
  EXPECT_GT(last, 90);
}

// Collects what a printer wrote, through a temporary file.
class Written {
 public:
  Written() : file_(std::tmpfile()) {}
  ~Written() { std::fclose(file_); }
  FILE* file() const { return file_; }
  std::string text() const {
    std::string out(static_cast<size_t>(std::ftell(file_)), '\0');
    std::rewind(file_);
    EXPECT_EQ(std::fread(out.data(), 1, out.size(), file_), out.size());
    return out;
  }

 private:
  FILE* file_;
};

// Runs a job of 1000 steps that take no time.
void tell(ProgressPrinter& printer) {
  for (const auto& [stage, total] : std::vector<std::pair<std::string, int>>{
           {"load", 1}, {"encode_text", 2}, {"denoise", 1000}, {"decode", 100}, {"write", 1}})
    for (int step = 0; step <= total; ++step)
      printer.progress({.stage = stage, .step = step, .total = total, .sigma = 0.5});
}

TEST(Progress, PlainIsALinePerStageOrFivePercent) {
  const Written written;
  ProgressPrinter printer(ProgressMode::kPlain, "a.mp4", written.file(), std::chrono::hours(1));
  tell(printer);
  printer.finish();
  const std::string text = written.text();
  const auto lines = std::count(text.begin(), text.end(), '\n');
  EXPECT_GE(lines, 15);
  EXPECT_LE(lines, 5 + 20 + 1) << text;  // stages, steps of 5 %, the end
  EXPECT_EQ(text.find('\r'), std::string::npos);
  EXPECT_TRUE(text.ends_with("weft: 100 %  completed\n")) << text;
}

TEST(Progress, JsonIsMonotoneAndReaches100OnlyAtTheEnd) {
  const Written written;
  ProgressPrinter printer(ProgressMode::kJson, "a.mp4", written.file(), std::chrono::hours(1));
  tell(printer);
  printer.finish();
  std::istringstream lines(written.text());
  double before = 0;
  int events = 0;
  std::string stage;
  for (std::string line; std::getline(lines, line); ++events) {
    const auto event = nlohmann::json::parse(line);
    EXPECT_EQ(event.at("event"), "progress");
    EXPECT_EQ(event.at("job"), "a.mp4");
    for (const char* key : {"step", "total", "elapsed_s", "eta_s"})
      EXPECT_TRUE(event.at(key).is_number()) << key;
    EXPECT_TRUE(event.at("mem_bytes").at("0").is_number());
    stage = event.at("stage");
    if (stage == "denoise") {
      EXPECT_EQ(event.at("sigma"), 0.5);
    }
    EXPECT_GE(event.at("percent"), before);
    before = event.at("percent");
    EXPECT_EQ(before == 100, stage == "completed");
  }
  EXPECT_EQ(stage, "completed");
  EXPECT_EQ(events, 2 + 3 + 1001 + 101 + 2 + 1);
}

TEST(Progress, AQueueSaysWhenItsFirstAndItsLastFrameAreDone) {
  Progress progress{.stage = "denoise", .step = 30, .total = 45};
  progress.seconds_per_step = 2;
  progress.eta_seconds = 30;
  progress.segments = 5;
  progress.first_frame_seconds = 10;
  const Written plain, json;
  ProgressPrinter(ProgressMode::kPlain, "a.mp4", plain.file(), std::chrono::hours(1))
      .progress(progress);
  EXPECT_EQ(plain.text(),
            "weft:  56 %  denoise 30/45  block 0/5 done  first frame in 10 s, last in 30 s\n");
  progress.first_frame_seconds = 0;
  progress.finished_segments = 2;
  ProgressPrinter(ProgressMode::kJson, "a.mp4", json.file(), std::chrono::hours(1))
      .progress(progress);
  const std::string text = json.text();
  const auto event = nlohmann::json::parse(text.substr(0, text.find('\n')));
  EXPECT_EQ(event.at("blocks"), nlohmann::json({{"done", 2}, {"total", 5}}));
  EXPECT_FALSE(event.contains("first_frame_eta_s"));
}

TEST(Progress, ALongStepIsNotSilent) {
  const Written written;
  ProgressPrinter printer(ProgressMode::kPlain, "a.mp4", written.file(),
                          std::chrono::milliseconds(1));
  printer.progress({.stage = "denoise", .step = 1, .total = 2});
  for (int i = 0; i < 10000 && std::ftell(written.file()) < 150; ++i)  // three lines and more
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  printer.finish();
  const std::string text = written.text();
  EXPECT_GE(std::count(text.begin(), text.end(), '\n'), 3) << text;
}

TEST(Progress, AStoppedJobSaysSoAndABarEndsItsLine) {
  const Written json, bar, none;
  {
    ProgressPrinter a(ProgressMode::kJson, "a.mp4", json.file());
    ProgressPrinter b(ProgressMode::kBar, "a.mp4", bar.file());
    ProgressPrinter c(ProgressMode::kNone, "a.mp4", none.file());
    for (ProgressPrinter* printer : {&a, &b, &c})
      printer->progress({.stage = "decode", .step = 1, .total = 2});
  }
  EXPECT_NE(json.text().find("\"event\":\"stopped\""), std::string::npos);
  EXPECT_TRUE(bar.text().ends_with("\n"));
  EXPECT_EQ(none.text(), "");
}

}  // namespace
}  // namespace weft
