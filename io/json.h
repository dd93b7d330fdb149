#pragma once
// A layer over nlohmann-json: parses with limits, reads typed fields with errors that name file,
// field, value and legal values, and writes values (Json). Sources that read in other ways include
// <nlohmann/json.hpp>, which takes seconds to compile.
#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

// kPython also accepts NaN, Infinity and -Infinity, which Python writes into config files.
enum class JsonDialect { kStrict, kPython };

struct JsonLimits {
  size_t bytes = size_t{64} << 20;
  size_t values = 4'000'000;  // scalars and containers
  int depth = 100;            // nested containers
  size_t keys = 4'000'000;    // of one object
};

// Messages begin with `what`, a path or the name of an input. Text that is not JSON, not UTF-8,
// over a limit or has a key twice in one object throws Error(kModel). `keys` receives the keys of
// all objects in the order of the text, which the result does not keep.
nlohmann::json parse_json(std::string_view text, const std::string& what,
                          JsonDialect dialect = JsonDialect::kStrict, const JsonLimits& limits = {},
                          std::vector<std::string>* keys = nullptr);
nlohmann::json read_json_file(const std::string& path, JsonDialect dialect = JsonDialect::kPython,
                              const JsonLimits& limits = {});
// Returns the bytes of a regular file of at most `max_bytes`. Throws Error(kModel) otherwise.
std::string read_text_file(const std::string& path, size_t max_bytes);

struct IntRange {
  int64_t min = std::numeric_limits<int64_t>::min(), max = std::numeric_limits<int64_t>::max();
};

// The typed getters throw Error(kModel). A field that is null counts as absent; json_*_or then
// return the fallback. A whole number spelled 8.0 is an integer.
bool json_has(const nlohmann::json& object, std::string_view field);  // present and not null
const nlohmann::json& json_field(const nlohmann::json& object, std::string_view field,
                                 const std::string& what);
int64_t json_int(const nlohmann::json& object, std::string_view field, const std::string& what,
                 IntRange legal = {});
int64_t json_int_or(const nlohmann::json& object, std::string_view field, const std::string& what,
                    int64_t fallback, IntRange legal = {});
double json_number(const nlohmann::json& object, std::string_view field, const std::string& what);
double json_number_or(const nlohmann::json& object, std::string_view field, const std::string& what,
                      double fallback);
bool json_bool(const nlohmann::json& object, std::string_view field, const std::string& what);
bool json_bool_or(const nlohmann::json& object, std::string_view field, const std::string& what,
                  bool fallback);
std::string json_string(const nlohmann::json& object, std::string_view field,
                        const std::string& what);
std::string json_string_or(const nlohmann::json& object, std::string_view field,
                           const std::string& what, const std::string& fallback);
std::vector<int64_t> json_ints(const nlohmann::json& object, std::string_view field,
                               const std::string& what, IntRange legal = {});
std::vector<double> json_numbers(const nlohmann::json& object, std::string_view field,
                                 const std::string& what);
std::vector<bool> json_bools(const nlohmann::json& object, std::string_view field,
                             const std::string& what);
std::vector<std::string> json_strings(const nlohmann::json& object, std::string_view field,
                                      const std::string& what);

// Returns a value as messages about a user's input show it: a text in quotes, or JSON. Long ones
// are cut.
std::string shown_value(const nlohmann::json& value);
// Returns whether the values are equal, or the same number, which a text may spell.
bool same_value(const nlohmann::json& one, const nlohmann::json& other);

struct JsonField;

// A JSON value to write, in the spelling of nlohmann-json. Everything that costs time to compile is
// in json.cc. A field that is set twice keeps its last value.
class Json {
 public:
  Json(std::nullptr_t = nullptr) {}
  Json(std::string_view text);
  Json(const std::string& text) : Json(std::string_view(text)) {}
  Json(const char* text) : Json(std::string_view(text)) {}
  Json(std::floating_point auto value) : kind_(Kind::kFloat), float_(value) {}
  Json(std::same_as<bool> auto value) : kind_(Kind::kBool), bits_(value) {}
  Json(std::signed_integral auto value)
      : kind_(Kind::kSigned), bits_(static_cast<uint64_t>(int64_t{value})) {}
  template <std::unsigned_integral T>
  requires(!std::same_as<T, bool>) Json(T value) : kind_(Kind::kUnsigned), bits_(value) {}
  Json(std::initializer_list<JsonField> fields);  // an object
  template <class T>
  Json(const std::vector<T>& list) : kind_(Kind::kArray) {
    for (const T& item : list) push_back(item);
  }
  template <class T>
  Json(const std::map<std::string, T>& fields) : kind_(Kind::kObject) {
    for (const auto& [key, item] : fields) (*this)[key] = item;
  }
  template <std::same_as<nlohmann::json> T>
  Json(const T& value) {
    copy(value);
  }
  Json(const Json& other);
  Json(Json&& other) noexcept;
  Json& operator=(const Json& other);
  Json& operator=(Json&& other) noexcept;
  ~Json();
  static Json object();
  static Json array(std::initializer_list<Json> items = {});

  bool is_null() const { return kind_ == Kind::kNull; }
  bool contains(std::string_view key) const;
  Json& operator[](std::string_view key);  // makes an object of null, and an absent field
  // The value of a field. Error(kModel) where it is absent or of another type.
  const Json& at(std::string_view key) const;
  bool boolean(std::string_view key) const;
  double number(std::string_view key) const;
  const std::string& text(std::string_view key) const;
  const std::vector<Json>& items() const { return items_; }       // of an array or an object
  const std::vector<std::string>& keys() const { return keys_; }  // of an object
  void push_back(Json item);                                      // makes an array of null
  void erase(std::string_view key);
  void update(const Json& object);

  // Keys in alphabetical order. Bytes that are not UTF-8 are written as \xHH (shown_bytes()). One
  // line, or lines that are indented.
  std::string dump(int indent = -1) const;
  std::string dump_in_order() const;  // keys in the order in which they were set
  operator nlohmann::json() const;

 private:
  enum class Kind : uint8_t { kNull, kBool, kSigned, kUnsigned, kFloat, kText, kArray, kObject };
  explicit Json(Kind kind) : kind_(kind) {}
  void copy(const nlohmann::json& value);
  const Json* find(std::string_view key) const;
  template <class Value>
  Value built() const;

  Kind kind_ = Kind::kNull;
  uint64_t bits_ = 0;  // of a bool and whole numbers
  double float_ = 0;
  std::string text_;
  std::vector<Json> items_;
  std::vector<std::string> keys_;  // of an object, one for each item
};
struct JsonField {
  std::string_view key;
  Json value;
};

}  // namespace weft
