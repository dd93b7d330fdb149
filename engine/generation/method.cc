#include "engine/generation/method.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <variant>
#include <vector>

#include "io/legal.h"
#include "io/nearest.h"
#include "kernels/check.h"

namespace weft {
namespace {

constexpr std::array<std::string_view, static_cast<size_t>(MethodKind::kCount)> kMethodNames{
    "auto", "full", "clips", "queue", "distrifusion", "pcpp", "pipefusion"};
constexpr std::string_view kSplits[] = {"rows", "frames"};
constexpr std::string_view kCodes[] = {"none", "fp8", "residual-fp8"};

struct Number {
  MethodKind kind;
  const char* name;
  const char* legal;
  std::variant<std::optional<int64_t> Method::*, std::optional<double> Method::*,
               std::optional<PatchSplit> Method::*, std::optional<WireCode> Method::*>
      member;
};

constexpr Number kNumbers[] = {
    {MethodKind::kClips, "window", "0 ... 4096", &Method::window},
    {MethodKind::kClips, "global", "0 ... 4096", &Method::global},
    {MethodKind::kClips, "trained", "1 ... 4096", &Method::trained},
    {MethodKind::kClips, "bias", "0 ... 1000", &Method::bias},
    {MethodKind::kClips, "global_sigma", "0 ... 2", &Method::global_sigma},
    {MethodKind::kClips, "stale", "0 ... 1", &Method::stale},
    {MethodKind::kClips, "warmup", "0 ... 1000", &Method::warmup},
    {MethodKind::kQueue, "block", "1 ... 4096", &Method::block},
    {MethodKind::kQueue, "context", "0 ... 4096", &Method::context},
    {MethodKind::kDistrifusion, "patches", "1 ... 4096", &Method::patches},
    {MethodKind::kDistrifusion, "warmup", "0 ... 1000", &Method::warmup},
    {MethodKind::kDistrifusion, "split", "rows|frames", &Method::split},
    {MethodKind::kDistrifusion, "code", "none|fp8|residual-fp8", &Method::code},
    {MethodKind::kDistrifusion, "resync", "1 ... 1000", &Method::resync},
    {MethodKind::kPcpp, "patches", "1 ... 4096", &Method::patches},
    {MethodKind::kPcpp, "window", "0 ... 1", &Method::near},
    {MethodKind::kPcpp, "last_window", "0 ... 1", &Method::last_near},
    {MethodKind::kPcpp, "warmup", "0 ... 1000", &Method::warmup},
    {MethodKind::kPcpp, "split", "rows|frames", &Method::split},
    {MethodKind::kPcpp, "code", "none|fp8|residual-fp8", &Method::code},
    {MethodKind::kPcpp, "resync", "1 ... 1000", &Method::resync},
    {MethodKind::kPipefusion, "patches", "1 ... 4096", &Method::patches},
    {MethodKind::kPipefusion, "warmup", "0 ... 1000", &Method::warmup},
    {MethodKind::kPipefusion, "split", "rows|frames", &Method::split},
    {MethodKind::kPipefusion, "resync", "1 ... 1000", &Method::resync},
};

std::string or_nearest(const std::string& name, const std::vector<std::string>& names) {
  std::string legal;
  for (const std::string& each : names) legal += (legal.empty() ? "" : ", ") + each;
  return "legal: " + legal + did_you_mean(nearest(name, names));
}

void set(Method& method, std::optional<int64_t> Method::*member, const GivenText& value) {
  method.*member = value.whole_number();
}
void set(Method& method, std::optional<double> Method::*member, const GivenText& value) {
  method.*member = value.number();
}
void set(Method& method, std::optional<PatchSplit> Method::*member, const GivenText& value) {
  method.*member = static_cast<PatchSplit>(std::ranges::find(kSplits, value.one_of()) - kSplits);
}
void set(Method& method, std::optional<WireCode> Method::*member, const GivenText& value) {
  method.*member = static_cast<WireCode>(std::ranges::find(kCodes, value.one_of()) - kCodes);
}

template <class T>
std::string text_of(T value) {
  char text[32];
  return {text, std::to_chars(text, std::end(text), value).ptr};
}
std::string text_of(PatchSplit split) { return std::string(kSplits[static_cast<size_t>(split)]); }
std::string text_of(WireCode code) { return std::string(kCodes[static_cast<size_t>(code)]); }

std::vector<int64_t> patches_of(const Method& method, const std::array<int64_t, 3>& grid) {
  const auto [frames, rows, columns] = grid;
  const bool by_frames = *method.split == PatchSplit::kFrames;
  const int64_t units = by_frames ? frames : frames * rows,
                size = by_frames ? rows * columns : columns;
  std::vector<int64_t> patches;
  for (int64_t patch = 0; patch < *method.patches; ++patch)
    patches.push_back(
        partition(units, static_cast<int>(*method.patches), static_cast<int>(patch)).size() * size);
  return patches;
}

}  // namespace

std::string_view to_string(MethodKind kind) { return kMethodNames[static_cast<size_t>(kind)]; }

std::string to_string(const Method& method) {
  std::string text(to_string(method.kind));
  char separator = ':';
  for (const Number& number : kNumbers)
    std::visit(
        [&](auto member) {
          if (number.kind != method.kind || !(method.*member)) return;
          text += separator + (number.name + ("=" + text_of(*(method.*member))));
          separator = ',';
        },
        number.member);
  return text;
}

Method parse_method(const std::string& text, const std::string& label) {
  const size_t colon = text.find(':');
  const std::string name = text.substr(0, colon), where = label + " is '" + text + "'";
  const auto found = std::ranges::find(kMethodNames, name);
  if (found == kMethodNames.end())
    throw Error(ErrorKind::kUsage,
                where + ", " + or_nearest(name, {kMethodNames.begin(), kMethodNames.end()}));
  Method method{.kind = static_cast<MethodKind>(found - kMethodNames.begin())};
  if (colon == std::string::npos) return method;
  std::vector<std::string> legal;
  for (const Number& number : kNumbers)
    if (number.kind == method.kind) legal.push_back(number.name);
  if (legal.empty())
    throw Error(ErrorKind::kUsage, where + ", but " + name + " has no numbers; legal: " + name);
  const std::vector<std::string> parts = split(text.substr(colon + 1), ',');
  if (parts.empty()) throw Error(ErrorKind::kUsage, where + ", legal after the colon: NAME=N,...");
  for (const std::string& part : parts) {
    const size_t equals = part.find('=');
    const std::string key = part.substr(0, equals);
    const auto number = std::ranges::find_if(
        kNumbers, [&](const Number& each) { return each.kind == method.kind && key == each.name; });
    if (number == std::end(kNumbers) || equals == std::string::npos)
      throw Error(ErrorKind::kUsage, where + ": '" + part + "' is no number of " + name + ", " +
                                         or_nearest(key, legal));
    const GivenText value{part.substr(equals + 1), where + ": " + key, number->legal};
    std::visit([&](auto member) { set(method, member, value); }, number->member);
  }
  return method;
}

std::optional<DualScope> dual_scope_of(const Method& method, int global_steps) {
  if (method.kind != MethodKind::kClips) return std::nullopt;
  return DualScope{.window = *method.window,
                   .global = *method.global,
                   .trained = *method.trained,
                   .bias = *method.bias,
                   .global_steps = global_steps,
                   .stale = static_cast<int>(*method.stale),
                   .warmup = static_cast<int>(*method.warmup)};
}

StalePatches stale_patches_of(const Method& method, const std::array<int64_t, 3>& grid, int steps) {
  if (!is_displaced(method)) return {};
  const std::vector<int64_t> patches = patches_of(method, grid);
  const int warmup = static_cast<int>(*method.warmup),
            resync = static_cast<int>(method.resync.value_or(0));
  if (is_pipefusion(method)) return {.pipefusion = PipeFusion{patches, warmup, resync}};
  Displaced out{
      .patches = patches, .warmup = warmup, .resync = resync, .steps = steps, .code = *method.code};
  if (method.kind != MethodKind::kPcpp) return {.displaced = out};
  const int first = out.warmup, last = std::max(steps - 1, first);
  for (int step = 0; step < steps; ++step) {
    const double share =
        last == first ? 0 : std::clamp(1.0 * (step - first) / (last - first), 0.0, 1.0);
    out.windows.push_back(*method.near + share * (*method.last_near - *method.near));
  }
  return {.displaced = out};
}

void limit_patches(const Method& method, const std::array<int64_t, 3>& grid, LayoutLimits& limits) {
  if (is_pipefusion(method))
    limits.patch_tokens = std::ranges::min(patches_of(method, grid));
  else if (is_displaced(method))
    limits.patches = *method.patches;
}

Method resolve_method(const Method& method, const MethodFacts& facts) {
  Method out = method;
  const int64_t trained = facts.trained_latents;
  if (out.kind == MethodKind::kAuto)
    out.kind = facts.latents > trained ? MethodKind::kQueue : MethodKind::kFull;
  const auto fill = [](auto& number, auto value) {
    if (!number) number = value;
  };
  if (out.kind == MethodKind::kClips) {
    fill(out.window, std::min((trained - 1) / 2, facts.latents - 1));
    fill(out.global, std::min<int64_t>(4, facts.latents));
    fill(out.trained, trained);
    fill(out.bias, 10.0);
    // Video-Infinity with its defaults favours the global frames in the first 7 of 30 steps.
    const double uniform = 0.77;
    fill(out.global_sigma, facts.flow_shift * uniform / (1 + (facts.flow_shift - 1) * uniform));
    fill(out.stale, 0);
    fill(out.warmup, *out.stale ? 2 : 0);
    if (const std::string why = refuse(*dual_scope_of(out, 0), facts.latents); !why.empty())
      throw Error(ErrorKind::kUsage, "the method " + to_string(out) + ": " + why);
  }
  if (is_displaced(out)) {
    fill(out.warmup, is_pipefusion(out) ? 1 : 4);
    fill(out.split, PatchSplit::kRows);
    if (!is_pipefusion(out)) fill(out.code, WireCode::kNone);
    if (out.kind == MethodKind::kPcpp) {
      fill(out.near, 0.3);
      fill(out.last_near, *out.near);
    }
    const int64_t most =
        *out.split == PatchSplit::kFrames ? facts.grid[0] : facts.grid[0] * facts.grid[1];
    if (is_pipefusion(out)) fill(out.patches, std::min<int64_t>(8, most));
    const std::string where = "the method " + to_string(out) + " has ",
                      legal = " patches; legal here: patches=1 ... " + std::to_string(most);
    if (!out.patches) throw Error(ErrorKind::kUsage, where + "no number of" + legal);
    if (*out.patches > most)
      throw Error(ErrorKind::kUsage, where + std::to_string(*out.patches) + legal);
    if (out.kind == MethodKind::kPcpp && *out.last_near > *out.near)
      throw Error(ErrorKind::kUsage,
                  where + "a window that grows; legal: last_window=0 ... " + text_of(*out.near));
  }
  if (out.kind == MethodKind::kQueue) {
    // Block and both contexts fill the trained length: 9 and 6 of 21, 8 and 4 of 16.
    fill(out.context, std::min(2 * trained / 7, out.block.value_or(trained)));
    fill(out.block, std::max<int64_t>(1, trained - 2 * *out.context));
  }
  return out;
}

}  // namespace weft
