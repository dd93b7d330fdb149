#pragma once
// ConfigReader: reads a configuration file, a line per field, and reports all its faults at once.
#include <array>
#include <concepts>
#include <functional>
#include <limits>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "io/json.h"
#include "kernels/check.h"

namespace weft {

// Returns the parts one after the other: text, and whole numbers in decimals.
template <class... Parts>
std::string text_of(const Parts&... parts) {
  std::string text;
  const auto add = [&text]<class Part>(const Part& part) {
    if constexpr (std::integral<Part>)
      text += std::to_string(part);
    else
      text += part;
  };
  (add(parts), ...);
  return text;
}

// Throws Error(kModel) that says where and why a model is refused.
template <class... Parts>
[[noreturn]] void refuse_model(const std::string& where, const Parts&... why) {
  throw Error(ErrorKind::kModel, text_of(where, ": ", why...));
}

// Returns the object that a configuration file holds. Throws Error(kModel) where it holds something
// else.
nlohmann::json read_config(const std::string& path);

// Checks the columns of a head that the rotary embedding turns for each axis: even numbers that add
// up to those of the head. Error(kModel) names the key otherwise.
void check_rotary_axes(const std::string& key, const std::array<int64_t, 3>& columns,
                       int64_t head_columns, const std::string& path);
// The complex pairs of these columns.
std::array<int, 3> rotary_pairs(const std::array<int64_t, 3>& columns);

// The legal values of a number that need not be whole, in the precision of the member it is read
// to, and the words that say so.
struct NumberRange {
  double min, max;
  const char* words;
};
inline constexpr double kLargestNumber = std::numeric_limits<double>::max();
inline constexpr NumberRange kFinite{-kLargestNumber, kLargestNumber, "finite"};
inline constexpr NumberRange kPositive{std::numeric_limits<double>::denorm_min(), kLargestNumber,
                                       "positive and finite"};
inline constexpr NumberRange kAboveOne{1 + std::numeric_limits<double>::epsilon(), kLargestNumber,
                                       "finite and above 1"};

// kIgnored is for files in which many keys describe things that the reader does not have.
enum class OtherKeys { kRefused, kIgnored };

// A function that takes a field notes its key as known, and its fault where it has one; null counts
// as absent. Values that follow from several fields are computed and checked after finish().
class ConfigReader {
 public:
  // Messages begin with the path. Throws Error(kModel) where the file holds no object.
  explicit ConfigReader(const std::string& path);
  ConfigReader(const nlohmann::json& object, std::string path);

  // Reads a field to a member, which keeps its value where an optional field is absent. `legal` is
  // an IntRange for a whole number, an IntRange and the most entries (size_t) for a list of them, a
  // NumberRange for other numbers and lists of them, and nothing for bool, text and their lists.
  template <class T, class... Legal>
  void required(const char* key, T& out, const Legal&... legal) {
    required({key});
    optional(key, out, legal...);
  }
  template <class T, class... Legal>
  void optional(const char* key, T& out, const Legal&... legal) {
    ignored({key});
    if (has(key)) read(key, out, legal...);
  }
  // Fields that must be there, whatever they hold.
  void required(const std::vector<const char*>& keys);
  // Fields that change nothing here.
  void ignored(const std::vector<const char*>& keys);
  // A field that may hold one of these values. Messages name them, and the reason if there is one.
  void only(const char* key, const std::vector<Json>& legal, const std::string& why = "");
  // A field that may be absent, but not null, which means that the model has no such part.
  void not_null(const char* key);
  // Fields whose value follows from that of another one, if both are there.
  void same(const char* key, const char* other);
  void divides(const char* key, const char* whole);
  // Notes that the value of a field is not supported.
  void refuse(const char* key, const std::string& why);
  bool has(const char* key) const;  // present and not null
  // A field that holds an object of its own. Throws Error(kModel) where it holds something else.
  ConfigReader part(const char* key);
  // Throws Error(kModel) where there are faults: the file is not `kind` ("a VAE's configuration").
  // Keys that begin with '_' are no configuration, and a quantization_config is legal where the
  // tensors tell all of it.
  void finish(const std::string& kind, OtherKeys others = OtherKeys::kRefused);

  const std::string& path() const { return path_; }

 private:
  template <std::integral T>
  void read(const char* key, T& out, const IntRange& legal) {
    take([&] { out = static_cast<T>(json_int(*config_, key, path_, legal)); });
  }
  template <std::floating_point T>
  void read(const char* key, T& out, const NumberRange& legal) {
    take([&] {
      const double value = json_number(*config_, key, path_);
      check(key, value, static_cast<T>(value), legal);
      out = static_cast<T>(value);
    });
  }
  template <std::floating_point T>
  void read(const char* key, std::vector<T>& out, const NumberRange& legal) {
    take([&] {
      const std::vector<double> values = json_numbers(*config_, key, path_);
      for (size_t i = 0; i < values.size(); ++i)
        check(text_of(key, "[", i, "]"), values[i], static_cast<T>(values[i]), legal);
      out.assign(values.begin(), values.end());
    });
  }
  template <class T, class... Legal>
  void read(const char* key, std::optional<T>& out, const Legal&... legal) {
    read(key, out.emplace(), legal...);
  }
  void read(const char* key, bool& out);
  void read(const char* key, std::string& out);
  void read(const char* key, std::vector<int64_t>& out, const IntRange& legal, const size_t& most);
  void read(const char* key, std::array<int64_t, 3>& out, const IntRange& legal);
  void read(const char* key, std::vector<bool>& out);
  void read(const char* key, std::vector<std::string>& out);
  // Notes what `get` throws.
  void take(const std::function<void()>& get);
  // Throws where a number, rounded to its member, is not legal.
  void check(const std::string& key, double value, double rounded, const NumberRange& legal) const;
  void check_quantization(const nlohmann::json& quantization);

  std::shared_ptr<const nlohmann::json> config_;
  std::string path_;
  std::vector<std::string> known_, missing_, unknown_, refused_, illegal_;
};

}  // namespace weft
