#include "engine/methods/method.h"

#include <algorithm>
#include <charconv>

#include "io/legal.h"
#include "io/nearest.h"
#include "kernels/check.h"

namespace weft {
namespace {

template <class... Each>
std::vector<Method> one_of_each(const std::variant<Each...>&) {
  return {Each()...};
}
const std::vector<Method>& methods() {
  static const std::vector<Method> all = one_of_each(Method());
  return all;
}

// The names of the methods that answer yes, or of all.
std::vector<std::string> names_of(bool (AnyMethod::*asked)() const = nullptr) {
  std::vector<std::string> names;
  for (const Method& method : methods())
    if (const AnyMethod& each = *method.operator->(); !asked || (each.*asked)())
      names.push_back(each.name());
  return names;
}

std::string or_nearest(const std::string& name, const std::vector<std::string>& names) {
  return "legal: " + listed(names) + did_you_mean(nearest(name, names));
}

template <class T>
T value_of(const GivenText& given) {
  if constexpr (std::is_same_v<T, int64_t>) {
    return given.whole_number();
  } else if constexpr (std::is_same_v<T, double>) {
    return given.number();
  } else {
    const std::vector<std::string> names = split(given.legal, '|');
    return static_cast<T>(std::ranges::find(names, given.one_of()) - names.begin());
  }
}

std::string text_of(const MethodNumber& number) {
  return std::visit(
      [&](const auto* value) -> std::string {
        using T = typename std::remove_cvref_t<decltype(*value)>::value_type;
        if (!*value) return "";
        if constexpr (std::is_enum_v<T>)
          return split(number.legal, '|')[static_cast<size_t>(**value)];
        else if constexpr (std::is_same_v<T, double>)
          return shortest(**value);
        else
          return std::to_string(**value);
      },
      number.value);
}

}  // namespace

std::string shortest(double value) {
  char text[32];
  return {text, std::to_chars(text, std::end(text), value).ptr};
}

const AnyMethod* Method::operator->() const {
  return std::visit([](const AnyMethod& each) { return &each; }, *this);
}
AnyMethod* Method::operator->() {
  return std::visit([](AnyMethod& each) { return &each; }, *this);
}

std::string to_string(Method method) {
  std::string text = method->name();
  char separator = ':';
  for (const MethodNumber& number : method->numbers())
    if (const std::string value = text_of(number); !value.empty())
      text += std::exchange(separator, ',') + (number.name + ("=" + value));
  return text;
}

Method parse_method(const std::string& text, const std::string& label) {
  const size_t colon = text.find(':');
  const std::string name = text.substr(0, colon), where = label + " is '" + text + "'";
  const auto refuse = [&](const std::string& why) { throw Error(ErrorKind::kUsage, where + why); };
  const std::vector<std::string> names = names_of();
  const auto found = std::ranges::find(names, name);
  if (found == names.end()) refuse(", " + or_nearest(name, names));
  Method method = methods()[found - names.begin()];
  if (colon == std::string::npos) return method;
  const std::vector<MethodNumber> numbers = method->numbers();
  std::vector<std::string> legal;
  for (const MethodNumber& number : numbers) legal.push_back(number.name);
  if (legal.empty()) refuse(", but " + name + " has no numbers; legal: " + name);
  const std::vector<std::string> parts = split(text.substr(colon + 1), ',');
  if (parts.empty()) refuse(", legal after the colon: NAME=N,...");
  for (const std::string& part : parts) {
    const size_t equals = part.find('=');
    const std::string key = part.substr(0, equals);
    const auto number = std::ranges::find(legal, key) - legal.begin();
    if (number == std::ssize(legal) || equals == std::string::npos)
      refuse(": '" + part + "' is no number of " + name + ", " + or_nearest(key, legal));
    const GivenText given{part.substr(equals + 1), where + ": " + key, numbers[number].legal};
    std::visit(
        [&](auto* value) {
          *value = value_of<typename std::remove_cvref_t<decltype(*value)>::value_type>(given);
        },
        numbers[number].value);
  }
  return method;
}

Method resolve_method(Method method, const MethodFacts& facts) {
  if (std::holds_alternative<Auto>(method)) {
    const std::optional<int64_t> resync = method->resync;
    method = facts.latents > facts.trained_latents ? Method(Queue()) : Full();
    method->resync = resync;
  }
  if (const std::string fault = method->resolve(facts); !fault.empty())
    throw Error(ErrorKind::kUsage, "the method " + to_string(method) + fault);
  return method;
}

void validate(const Method& method, const MethodJob& job) {
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorKind::kUsage, "--method is '" + to_string(method) + "', but " + why);
  };
  if (method->resync && !method->has_old_patches())
    refuse("--resync-every is " + std::to_string(*method->resync) +
           ", and no patches are a step old; legal with it: " +
           listed(names_of(&AnyMethod::has_old_patches)));
  if ((job.scheduled || job.endless) && !method->in_segments())
    refuse((job.scheduled ? "a prompt schedule" : "an endless video") +
           std::string(" needs blocks that follow each other; legal with it: ") +
           listed(names_of(&AnyMethod::in_segments)));
  if (!job.joint.empty() && !method->takes_joint_text())
    refuse(job.joint +
           " has its text among the tokens, which this method cannot split; legal: " + "full");
  if (const std::string why = method->refuse(job); !why.empty()) refuse(why);
}

}  // namespace weft
