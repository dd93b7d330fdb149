#include "apps/command_line/placement.h"

#include <algorithm>
#include <charconv>

#include "io/legal.h"
#include "kernels/check.h"
#include "kernels/cuda/device.h"
#include "parallel/bootstrap/launch.h"

namespace weft {
namespace {

// The number of usable GPUs, and where there is none the reason.
struct Gpus {
  int count = 0;
  std::string absence;
};

Gpus gpus_here() {
  if (cuda_versions().empty()) return {0, cuda_absence()};
  try {
    return {cuda_device_count(), cuda_absence()};
  } catch (const Error& error) {
    return {0, error.what()};
  }
}

void resolve_gpus(Flags& flags) {
  const auto gpus = flags.integer("gpus");
  if (!gpus) return;
  const std::string count = std::to_string(*gpus), typed = flags.label("gpus");
  const std::string device = flags.text("device");
  const std::string meaning = typed + " " + count + " means --device cuda --ranks " + count;
  if (flags.given("device") && device != "cuda")
    throw Error(ErrorKind::kUsage, meaning + ", but " + flags.label("device") + " is '" + device +
                                       "'; legal beside it: --device cuda");
  if (flags.given("ranks") && flags.integer("ranks") != gpus)
    throw Error(ErrorKind::kUsage, meaning + ", but " + flags.label("ranks") + " is " +
                                       flags.text("ranks") + "; legal beside it: --ranks " + count);
  const bool runs_nothing =
      flags.command() == kPlan || flags.command() == kInspect || flags.on("print-config");
  if (const Gpus here = gpus_here(); here.count == 0 && !runs_nothing)
    throw Error(ErrorKind::kUsage,
                meaning + ", but " + here.absence + "; on CPUs: --ranks " + count);
  flags.imply("device", "cuda", typed);
  flags.imply("ranks", count, typed);
}

void resolve_device(Flags& flags) {
  if (!flags.text("device-name").empty()) {
    if (flags.text("device") == "cpu")
      throw Error(ErrorKind::kUsage, flags.label("device-name") + " names a GPU, but " +
                                         flags.label("device") +
                                         " is 'cpu'; legal beside it: --device cuda");
    if (flags.text("device") == "auto") flags.imply("device", "cuda", flags.label("device-name"));
  }
  if (flags.text("device") != "auto") return;
  const bool has_backend = !cuda_versions().empty();
  if (!has_backend)
    flags.imply("device", "cpu", flags.given("device") ? "auto" : "default");
  else
    flags.imply("device", gpus_here().count > 0 ? "cuda" : "cpu", "auto");
}

}  // namespace

std::string chosen_by_auto(const Flags& flags) {
  if (flags.origin("device") != "auto") return "";
  const bool falls_back = flags.text("device") == "cpu" && !cuda_versions().empty();
  return " (chosen by --device auto" + (falls_back ? ": " + gpus_here().absence : "") + ")";
}

namespace {

// The keys of --layout that are no axes. The flags have the same names.
constexpr const char* kStageKeys[] = {"text_ranks", "vae_ranks", "decode_rank"};

// The ranks that "cfg=2,ulysses=2" needs; 0 where the text is no list of axes. The keys text_ranks,
// vae_ranks and decode_rank are no axes: they choose among the ranks that there are.
int64_t product_of(const std::string& layout) {
  int64_t product = 1;
  for (const std::string& part : split(layout, ',')) {
    const size_t equals = part.find('=');
    if (std::ranges::any_of(
            kStageKeys, [&](const char* key) { return part.starts_with(key + std::string("=")); }))
      continue;
    if (equals == std::string::npos) return 0;
    int64_t parts = 0;
    const char* end = part.data() + part.size();
    const auto [stop, error] = std::from_chars(part.data() + equals + 1, end, parts);
    if (error != std::errc() || stop != end || parts < 1 || parts > 4096) return 0;
    product *= parts;
    if (product > 4096) return 0;
  }
  return product;
}

void resolve_ranks(Flags& flags) {
  if (flags.given("ranks") || !find_flag(flags.command(), "ranks")) return;
  const std::string layout = layout_text(flags);
  int64_t product = layout.empty() ? 1 : product_of(layout);
  // The decoder of a stream may be one rank more than the axes say.
  const bool one_more =
      flags.command() == kStream && product > 0 &&
      ("," + layout + ",").find(",decode_rank=" + std::to_string(product) + ",") !=
          std::string::npos;
  product += one_more;
  if (product > 1 && product <= 1024 && flags.text("nodes").empty() &&
      detect_launch().launcher == Launcher::kNone)
    flags.imply("ranks", std::to_string(product), "layout " + layout);
}

}  // namespace

const char* flag_of_axis(Axis axis) {
  constexpr const char* kFlags[kAxes] = {"dp",    "cfg",  "step",       "pp",      "clip",
                                         "patch", "ring", "token-ring", "ulysses", "tp"};
  static_assert(kFlags[kAxes - 1] != nullptr, "every axis has a flag");
  return kFlags[static_cast<int>(axis)];
}

std::string layout_text(const Flags& flags) {
  std::string text;
  for (int i = 0; i < kAxes; ++i) {
    const Axis axis = static_cast<Axis>(i);
    if (const auto parts = flags.integer(flag_of_axis(axis)))
      text +=
          (text.empty() ? "" : ",") + std::string(to_string(axis)) + "=" + std::to_string(*parts);
  }
  if (!text.empty() && flags.given("layout"))
    throw Error(ErrorKind::kUsage, flags.label("layout") + " is '" + flags.text("layout") +
                                       "', and other flags say " + text + "; give the layout once");
  if (text.empty()) text = flags.text("layout");
  for (const std::string key : kStageKeys) {
    std::string flag = key;
    std::ranges::replace(flag, '_', '-');
    if (const auto value = flags.integer(flag))
      text += (text.empty() ? "auto," : ",") + key + "=" + std::to_string(*value);
  }
  return text;
}

std::optional<int64_t> parts_along(Axis axis, const Flags& flags) {
  const std::string key = std::string(to_string(axis)) + "=";
  for (const std::string& part : split(layout_text(flags), ','))
    if (part.starts_with(key)) return std::strtoll(part.c_str() + key.size(), nullptr, 10);
  return std::nullopt;
}

void resolve_placement(Flags& flags) {
  resolve_gpus(flags);
  resolve_device(flags);
  resolve_ranks(flags);
}

}  // namespace weft
