#include "io/media/segments.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <set>

#include "io/folder.h"
#include "io/media/media_probe.h"
#include "kernels/check.h"

namespace weft {

namespace {

namespace fs = std::filesystem;

// One that exists.
struct Segment {
  bool same;  // it belongs to the same job
  int64_t frames;
};

// The index in a name: `before`, at least three digits, `after`. -1 for any other name.
int64_t index_in(const std::string& name, const std::string& before, const std::string& after) {
  constexpr size_t kDigits = 3;
  if (name.size() < before.size() + kDigits + after.size() || !name.starts_with(before) ||
      !name.ends_with(after))
    return -1;
  int64_t index = -1;
  const char* end = name.data() + name.size() - after.size();
  const auto [stop, error] = std::from_chars(name.data() + before.size(), end, index);
  return error == std::errc() && stop == end ? index : -1;
}

class SegmentedSink final : public FrameSink {
 public:
  SegmentedSink(const std::string& path, const VideoSettings& settings, Overwrite overwrite,
                int64_t frames)
      : path_(path),
        settings_(settings),
        overwrite_(overwrite),
        length_(frames),
        index_(settings.kept_frames / frames),
        held_(settings.kept_frames % frames) {
    CHECK(frames > 0, frames);
    find_earlier();
    for (int64_t before = 0; before < index_; ++before)
      if (!found_.contains(before) || found_[before].frames != length_)
        throw Error(ErrorKind::kOutput, "'" + segment_path(path_, before) +
                                            "' is missing or not whole, but an earlier run has "
                                            "kept it");
    if (!holds(held_)) open();
  }

  void push(const Frame& frame) override {
    if (!sink_ && !holds(held_ + 1)) open();
    if (sink_) sink_->push(frame);
    if (++held_ == length_) next();
  }

  void keep() override {
    if (sink_) sink_->keep();
  }

  std::string finish() override {
    if (index_ + held_ == 0)
      throw Error(ErrorKind::kOutput, "no frame to write to '" + segment_path(path_, 0) + "'");
    if (held_ > 0) next();
    for (const auto& [index, unused] : found_)
      if (index >= index_) fs::remove(segment_path(path_, index));
    return segment_path(path_, 0);
  }

 private:
  // True where an earlier run has made the segment in work, and so many frames are in it. The last
  // one may be short: if the part that held its kept frames is gone, that run has finished it.
  bool holds(int64_t frames) const {
    const auto found = found_.find(index_);
    if (found == found_.end() || !found->second.same) return false;
    return found->second.frames == length_ ||
           (held_ > 0 && !part_left_ && found->second.frames >= frames);
  }

  void open() {
    const bool exists = found_.contains(index_);
    VideoSettings settings = settings_;
    settings.kept_frames = held_;
    settings.first_cut -= index_ * length_;
    sink_ =
        make_sink(segment_path(path_, index_), settings, exists ? Overwrite::kReplace : overwrite_);
  }

  void next() {
    if (sink_) sink_->finish();
    sink_.reset();
    ++index_;
    held_ = 0;
  }

  // Finds the segments of earlier runs, and removes the parts that a killed one left.
  void find_earlier() {
    const fs::path path(path_);
    const std::string folder = path.has_parent_path() ? path.parent_path().string() : ".";
    const std::string stem = path.stem().string() + ".", extension = path.extension().string();
    std::vector<std::string> names;
    if (list_folder(folder, names) != 0) return;  // make_sink() creates it or says what is wrong
    for (const std::string& name : names)
      if (const int64_t index = index_in(name, stem, extension); index >= 0) find(index);
    std::set<int64_t> parts;
    for (const std::string& name : names)
      for (const std::string tag : {".part", ".whole.part"})
        if (const int64_t index = index_in(name, "." + stem, tag + extension); index >= 0)
          parts.insert(index);
    part_left_ = parts.contains(index_);
    for (const int64_t index : parts)
      if (index != index_ || held_ == 0 || holds(held_)) drop_parts(segment_path(path_, index));
  }

  void find(int64_t index) {
    const std::string file = segment_path(path_, index);
    MediaInfo info;
    try {
      info = probe_media(file);
    } catch (const Error&) {  // not a clip: another job's
    }
    const auto ours = settings_.metadata.find("weft");
    const auto theirs = info.metadata.find("weft");
    // Another layout is told in the metadata, too. What was kept is known to be this job's.
    const bool same =
        index < index_ || (ours != settings_.metadata.end() && theirs != info.metadata.end() &&
                           ours->second == theirs->second);
    if (!same && overwrite_ == Overwrite::kRefuse)
      throw Error(ErrorKind::kOutput,
                  "'" + file + "' exists; choose another --output or give --overwrite");
    found_[index] = {same, info.frames};
  }

  const std::string path_;
  const VideoSettings settings_;
  const Overwrite overwrite_;
  const int64_t length_;
  std::map<int64_t, Segment> found_;
  std::unique_ptr<FrameSink> sink_;  // null in a segment that is kept
  bool part_left_ = false;           // of the segment that was in work when an earlier run ended
  int64_t index_, held_;             // the segment in work, and the frames that it has
};

}  // namespace

std::string segment_path(const std::string& path, int64_t index) {
  const fs::path whole(path);
  std::string number = std::to_string(index);
  number.insert(0, number.size() < 3 ? 3 - number.size() : 0, '0');
  fs::path name = whole.stem();
  name += "." + number + whole.extension().string();
  return (whole.parent_path() / name).string();
}

std::unique_ptr<FrameSink> make_segmented_sink(const std::string& path,
                                               const VideoSettings& settings, Overwrite overwrite,
                                               int64_t frames) {
  return std::make_unique<SegmentedSink>(path, settings, overwrite, frames);
}

}  // namespace weft
