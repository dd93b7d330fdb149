#include "engine/generation/method.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <type_traits>
#include <variant>
#include <vector>

#include "io/nearest.h"
#include "kernels/check.h"

namespace weft {
namespace {

constexpr std::array<std::string_view, static_cast<size_t>(MethodKind::kCount)> kNames{
    "auto", "full", "clips", "queue"};

struct Number {
  MethodKind kind;
  const char* name;
  double low, high;
  std::variant<std::optional<int64_t> Method::*, std::optional<double> Method::*> member;

  std::string legal() const {
    const bool whole = std::holds_alternative<std::optional<int64_t> Method::*>(member);
    const auto shown = [](double value) {
      char text[32];
      std::snprintf(text, sizeof text, "%.10g", value);
      return std::string(text);
    };
    return std::string(whole ? "a whole number, " : "a number, ") + shown(low) + " ... " +
           shown(high);
  }
};

constexpr Number kNumbers[] = {
    {MethodKind::kClips, "window", 0, 4096, &Method::window},
    {MethodKind::kClips, "global", 0, 4096, &Method::global},
    {MethodKind::kClips, "trained", 1, 4096, &Method::trained},
    {MethodKind::kClips, "bias", 0, 1000, &Method::bias},
    {MethodKind::kClips, "global_sigma", 0, 2, &Method::global_sigma},
    {MethodKind::kClips, "stale", 0, 1, &Method::stale},
    {MethodKind::kClips, "warmup", 0, 1000, &Method::warmup},
    {MethodKind::kQueue, "block", 1, 4096, &Method::block},
    {MethodKind::kQueue, "context", 0, 4096, &Method::context},
};

std::vector<std::string> split(const std::string& text, char by) {
  std::vector<std::string> parts;
  size_t begin = 0;
  for (size_t end; (end = text.find(by, begin)) != std::string::npos; begin = end + 1)
    parts.push_back(text.substr(begin, end - begin));
  parts.push_back(text.substr(begin));
  return parts;
}

std::string joined(const std::vector<std::string>& names) {
  std::string all;
  for (const std::string& name : names) all += (all.empty() ? "" : ", ") + name;
  return all;
}

std::string or_nearest(const std::string& name, const std::vector<std::string>& legal) {
  const std::string near = nearest(name, legal);
  return "legal: " + joined(legal) + (near.empty() ? "" : "; did you mean " + near + "?");
}

void set_number(Method& method, const Number& number, const std::string& value,
                const std::string& where) {
  std::visit(
      [&](auto member) {
        typename std::remove_reference_t<decltype(method.*member)>::value_type read{};
        const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), read);
        const bool whole = error == std::errc() && end == value.data() + value.size();
        const auto as_number = static_cast<double>(read);
        if (!whole || !(as_number >= number.low && as_number <= number.high))
          throw Error(ErrorKind::kUsage,
                      where + ": " + number.name + " is '" + value + "', legal: " + number.legal());
        method.*member = read;
      },
      number.member);
}

}  // namespace

std::string_view to_string(MethodKind kind) { return kNames[static_cast<size_t>(kind)]; }

std::string to_string(const Method& method) {
  std::string text(to_string(method.kind));
  char separator = ':';
  for (const Number& number : kNumbers)
    std::visit(
        [&](auto member) {
          if (number.kind != method.kind || !(method.*member)) return;
          char value[32];
          const auto end = std::to_chars(value, std::end(value), *(method.*member)).ptr;
          text += separator + (number.name + ("=" + std::string(value, end)));
          separator = ',';
        },
        number.member);
  return text;
}

Method parse_method(const std::string& text, const std::string& label) {
  const size_t colon = text.find(':');
  const std::string name = text.substr(0, colon), where = label + " is '" + text + "'";
  const auto found = std::ranges::find(kNames, name);
  if (found == kNames.end())
    throw Error(ErrorKind::kUsage, where + ", " + or_nearest(name, {kNames.begin(), kNames.end()}));
  Method method{.kind = static_cast<MethodKind>(found - kNames.begin())};
  if (colon == std::string::npos) return method;
  std::vector<std::string> legal;
  for (const Number& number : kNumbers)
    if (number.kind == method.kind) legal.push_back(number.name);
  if (legal.empty())
    throw Error(ErrorKind::kUsage, where + ", but " + name + " has no numbers; legal: " + name);
  for (const std::string& part : split(text.substr(colon + 1), ',')) {
    const size_t equals = part.find('=');
    const std::string key = part.substr(0, equals);
    const auto number = std::ranges::find_if(
        kNumbers, [&](const Number& each) { return each.kind == method.kind && key == each.name; });
    if (number == std::end(kNumbers) || equals == std::string::npos)
      throw Error(ErrorKind::kUsage, where + ": '" + part + "' is no number of " + name + ", " +
                                         or_nearest(key, legal));
    set_number(method, *number, part.substr(equals + 1), where);
  }
  return method;
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
    // Video-Infinity looks at the whole in the first 23 % of the steps (section 4.3, t >= 800).
    const double uniform = 0.77;
    fill(out.global_sigma, facts.flow_shift * uniform / (1 + (facts.flow_shift - 1) * uniform));
    fill(out.stale, 0);
    fill(out.warmup, *out.stale ? 2 : 0);
    if (*out.global > facts.latents)
      throw Error(ErrorKind::kUsage, "the method's global is " + std::to_string(*out.global) +
                                         ", legal: 0 ... " + std::to_string(facts.latents) +
                                         ", the latent frames of the video");
  }
  if (out.kind == MethodKind::kQueue) {
    // Block and both contexts fill the trained length: 9 and 6 of 21, 8 and 4 of 16.
    fill(out.context, std::min(2 * trained / 7, out.block.value_or(trained)));
    fill(out.block, std::max<int64_t>(1, trained - 2 * *out.context));
    if (*out.context > *out.block)
      throw Error(ErrorKind::kUsage, "the method's context is " + std::to_string(*out.context) +
                                         ", legal: 0 ... " + std::to_string(*out.block) +
                                         ", the frames of a block");
  }
  return out;
}

}  // namespace weft
