#include "io/json.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>

#include "io/input_file.h"
#include "io/text/utf8.h"
#include "kernels/check.h"

namespace weft {
namespace {

using nlohmann::json;

[[noreturn]] void refuse(const std::string& what, const std::string& reason) {
  throw Error(ErrorKind::kModel, what + ": " + reason);
}

// Returns a value as messages show it: short and on one line. It never throws.
std::string shown(const json& value) {
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > 80) text = text.substr(0, 77) + "...";
  return text;
}

// The parser does not know Python's three extra literals, so they are replaced by these strings. No
// real string begins with a NUL. The builder turns them into doubles and checks that it found as
// many as were replaced.
constexpr std::string_view kMark{"\0py:", 4};
constexpr std::string_view kMarkSpelled = "\"\\u0000py:";
struct Literal {
  std::string_view name;
  double value;
};
constexpr Literal kLiterals[] = {{"NaN", std::numeric_limits<double>::quiet_NaN()},
                                 {"Infinity", std::numeric_limits<double>::infinity()},
                                 {"-Infinity", -std::numeric_limits<double>::infinity()}};

// Replaces the literals outside of strings, and returns their number.
size_t mark_literals(std::string_view text, std::string& out) {
  size_t marked = 0;
  bool quoted = false;
  out.reserve(text.size() + 64);
  for (size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (quoted) {
      const size_t taken = c == '\\' && i + 1 < text.size() ? 2 : 1;
      quoted = c != '"';
      out.append(text, i, taken);
      i += taken;
      continue;
    }
    const Literal* found = nullptr;
    for (const Literal& literal : kLiterals)
      if (text.substr(i, literal.name.size()) == literal.name) found = &literal;
    if (found) {
      out.append(kMarkSpelled).append(found->name).push_back('"');
      i += found->name.size();
      ++marked;
    } else {
      quoted = c == '"';
      out.push_back(c);
      ++i;
    }
  }
  return marked;
}

// Builds the document from parse events, so that parsing ends as soon as a limit is exceeded.
class Builder : public nlohmann::json_sax<json> {
 public:
  Builder(const std::string& what, const JsonLimits& limits, std::vector<std::string>* keys)
      : what_(what), limits_(limits), keys_(keys) {}

  json take(size_t marked) {
    if (marked != marks_) refuse(what_, "a string begins with a reserved mark (NUL \"py:\")");
    return std::move(root_);
  }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(int64_t value) override { return add(value); }
  bool number_unsigned(uint64_t value) override { return add(value); }
  bool number_float(double value, const std::string&) override { return add(value); }
  bool binary(json::binary_t&) override { return false; }
  bool string(std::string& value) override {
    if (value.starts_with(kMark)) {
      ++marks_;
      for (const Literal& literal : kLiterals)
        if (value.substr(kMark.size()) == literal.name) return add(literal.value);
    }
    return add(std::move(value));
  }
  bool start_object(size_t) override { return open(json::object()); }
  bool start_array(size_t) override { return open(json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(std::string& name) override {
    if (name.starts_with(kMark)) refuse(what_, "NaN or Infinity stands where a key is due");
    if (!stack_.back()->emplace(name, nullptr).second)
      refuse(what_, "key " + shown(name) + " stands twice in one object");
    if (stack_.back()->size() > limits_.keys)
      refuse(what_, "more than " + std::to_string(limits_.keys) + " keys in one JSON object");
    if (keys_) keys_->push_back(name);
    key_ = std::move(name);
    return true;
  }
  bool parse_error(size_t byte, const std::string&, const nlohmann::detail::exception& e) override {
    std::string reason = e.what();
    if (const size_t end = reason.find("] "); reason.starts_with('[') && end != reason.npos)
      reason.erase(0, end + 2);
    refuse(what_, "not valid JSON near byte " + std::to_string(byte) + ": " + reason);
  }

 private:
  json* place(json value) {
    if (++values_ > limits_.values)
      refuse(what_, "more than " + std::to_string(limits_.values) + " JSON values");
    if (stack_.empty()) return &(root_ = std::move(value));
    json& parent = *stack_.back();
    if (parent.is_array()) return &parent.emplace_back(std::move(value));
    return &(parent[key_] = std::move(value));
  }
  bool add(json value) {
    place(std::move(value));
    return true;
  }
  bool open(json value) {
    if (static_cast<int>(stack_.size()) >= limits_.depth)
      refuse(what_, "JSON nested deeper than " + std::to_string(limits_.depth));
    stack_.push_back(place(std::move(value)));
    return true;
  }
  bool close() {
    stack_.pop_back();
    return true;
  }

  const std::string& what_;
  const JsonLimits& limits_;
  std::vector<std::string>* keys_;
  json root_;
  std::vector<json*> stack_;  // open containers; a parent does not grow while its child is open
  std::string key_;
  size_t values_ = 0, marks_ = 0;
};

[[noreturn]] void wrong(const std::string& what, std::string_view field, const json& value,
                        const std::string& legal) {
  refuse(what, "\"" + std::string(field) + "\" is " + shown(value) + ", must be " + legal);
}

std::string range_text(IntRange legal) {
  constexpr IntRange kAny;
  if (legal.min == kAny.min && legal.max == kAny.max) return "a whole number";
  if (legal.max == kAny.max) return "a whole number of at least " + std::to_string(legal.min);
  if (legal.min == kAny.min) return "a whole number of at most " + std::to_string(legal.max);
  return "a whole number in [" + std::to_string(legal.min) + ", " + std::to_string(legal.max) + "]";
}

int64_t to_int(const json& value, std::string_view field, const std::string& what, IntRange legal) {
  int64_t out = 0;
  bool whole = false;
  if (value.is_number_unsigned()) {
    const uint64_t number = value.get<uint64_t>();
    whole = number <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
    out = static_cast<int64_t>(number);
  } else if (value.is_number_integer()) {
    out = value.get<int64_t>();
    whole = true;
  } else if (value.is_number_float()) {
    const double number = value.get<double>();
    whole = std::trunc(number) == number && std::fabs(number) < 0x1p53;  // exact in a double
    if (whole) out = static_cast<int64_t>(number);
  }
  if (!whole || out < legal.min || out > legal.max) wrong(what, field, value, range_text(legal));
  return out;
}

template <class T, class F>
std::vector<T> to_list(const json& value, std::string_view field, const std::string& what,
                       const std::string& legal, F&& convert) {
  if (!value.is_array()) wrong(what, field, value, legal);
  std::vector<T> out;
  out.reserve(value.size());
  for (size_t i = 0; i < value.size(); ++i)
    out.push_back(convert(value[i], std::string(field) + "[" + std::to_string(i) + "]"));
  return out;
}

double to_number(const json& value, std::string_view field, const std::string& what) {
  if (!value.is_number()) wrong(what, field, value, "a number");
  return value.get<double>();
}

bool to_bool(const json& value, std::string_view field, const std::string& what) {
  if (!value.is_boolean()) wrong(what, field, value, "true or false");
  return value.get<bool>();
}

std::string to_text(const json& value, std::string_view field, const std::string& what) {
  if (!value.is_string()) wrong(what, field, value, "a string");
  return value.get<std::string>();
}

}  // namespace

nlohmann::json parse_json(std::string_view text, const std::string& what, JsonDialect dialect,
                          const JsonLimits& limits, std::vector<std::string>* keys) {
  if (text.size() > limits.bytes)
    refuse(what, std::to_string(text.size()) + " bytes of JSON, at most " +
                     std::to_string(limits.bytes) + " are read");
  std::string marked_text;
  size_t marked = 0;
  if (dialect == JsonDialect::kPython) {
    marked = mark_literals(text, marked_text);
    if (marked)
      text = marked_text;
    else
      std::string().swap(marked_text);  // frees the second copy of a large file
  }
  Builder builder(what, limits, keys);
  json::sax_parse(text.begin(), text.end(), &builder);
  return builder.take(marked);
}

std::string read_text_file(const std::string& path, size_t max_bytes) {
  return read_input_file(path, max_bytes, ErrorKind::kModel);
}

nlohmann::json read_json_file(const std::string& path, JsonDialect dialect,
                              const JsonLimits& limits) {
  return parse_json(read_text_file(path, limits.bytes), path, dialect, limits);
}

bool json_has(const json& object, std::string_view field) {
  if (!object.is_object()) return false;
  const auto it = object.find(field);
  return it != object.end() && !it->is_null();
}

const json& json_field(const json& object, std::string_view field, const std::string& what) {
  if (!object.is_object())
    refuse(what, "an object is due where " + shown(object) + " stands (looking for \"" +
                     std::string(field) + "\")");
  const auto it = object.find(field);
  if (it == object.end() || it->is_null())
    refuse(what, "field \"" + std::string(field) + "\" is missing");
  return *it;
}

int64_t json_int(const json& object, std::string_view field, const std::string& what,
                 IntRange legal) {
  return to_int(json_field(object, field, what), field, what, legal);
}
int64_t json_int_or(const json& object, std::string_view field, const std::string& what,
                    int64_t fallback, IntRange legal) {
  return json_has(object, field) ? json_int(object, field, what, legal) : fallback;
}
double json_number(const json& object, std::string_view field, const std::string& what) {
  return to_number(json_field(object, field, what), field, what);
}
double json_number_or(const json& object, std::string_view field, const std::string& what,
                      double fallback) {
  return json_has(object, field) ? json_number(object, field, what) : fallback;
}
bool json_bool(const json& object, std::string_view field, const std::string& what) {
  return to_bool(json_field(object, field, what), field, what);
}
bool json_bool_or(const json& object, std::string_view field, const std::string& what,
                  bool fallback) {
  return json_has(object, field) ? json_bool(object, field, what) : fallback;
}
std::string json_string(const json& object, std::string_view field, const std::string& what) {
  return to_text(json_field(object, field, what), field, what);
}
std::string json_string_or(const json& object, std::string_view field, const std::string& what,
                           const std::string& fallback) {
  return json_has(object, field) ? json_string(object, field, what) : fallback;
}

std::vector<int64_t> json_ints(const json& object, std::string_view field, const std::string& what,
                               IntRange legal) {
  return to_list<int64_t>(
      json_field(object, field, what), field, what, "a list of whole numbers",
      [&](const json& v, const std::string& f) { return to_int(v, f, what, legal); });
}
std::vector<double> json_numbers(const json& object, std::string_view field,
                                 const std::string& what) {
  return to_list<double>(
      json_field(object, field, what), field, what, "a list of numbers",
      [&](const json& v, const std::string& f) { return to_number(v, f, what); });
}
std::vector<bool> json_bools(const json& object, std::string_view field, const std::string& what) {
  return to_list<bool>(json_field(object, field, what), field, what, "a list of true and false",
                       [&](const json& v, const std::string& f) { return to_bool(v, f, what); });
}
std::vector<std::string> json_strings(const json& object, std::string_view field,
                                      const std::string& what) {
  return to_list<std::string>(
      json_field(object, field, what), field, what, "a list of strings",
      [&](const json& v, const std::string& f) { return to_text(v, f, what); });
}

std::string shown_value(const json& value) {
  constexpr size_t kShown = 80;
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  if (value.is_string()) text.front() = text.back() = '\'';
  return text.size() > kShown ? std::string(utf8_beginning(text, kShown)) + "..." : text;
}

bool same_value(const json& one, const json& other) {
  if (one == other || (one.is_number_integer() && other.is_number_integer())) return one == other;
  const auto number = [](const json& value) -> std::optional<double> {
    if (value.is_number()) return value.get<double>();
    if (!value.is_string()) return std::nullopt;
    const std::string& text = value.get_ref<const std::string&>();
    char* end = nullptr;
    const double read = std::strtod(text.c_str(), &end);
    return text.empty() || *end ? std::nullopt : std::optional(read);
  };
  const auto first = number(one), second = number(other);
  return first && second && *first == *second;
}

Json::Json(std::string_view text) : kind_(Kind::kText), text_(text) {}
Json::Json(std::initializer_list<JsonField> fields) : kind_(Kind::kObject) {
  for (const JsonField& field : fields) (*this)[field.key] = field.value;
}
Json::Json(const Json& other) = default;
Json::Json(Json&& other) noexcept = default;
Json& Json::operator=(const Json& other) = default;
Json& Json::operator=(Json&& other) noexcept = default;
Json::~Json() = default;
Json Json::object() { return Json(Kind::kObject); }
Json Json::array(std::initializer_list<Json> items) {
  Json list(Kind::kArray);
  list.items_ = items;
  return list;
}

template <class Value>
Value Json::built() const {
  switch (kind_) {
    case Kind::kNull:
      return nullptr;
    case Kind::kBool:
      return bits_ != 0;
    case Kind::kSigned:
      return static_cast<int64_t>(bits_);
    case Kind::kUnsigned:
      return bits_;
    case Kind::kFloat:
      return float_;
    case Kind::kText:
      return shown_bytes(text_);
    case Kind::kArray:
    case Kind::kObject:
      break;
  }
  Value value = kind_ == Kind::kArray ? Value::array() : Value::object();
  for (size_t i = 0; i < items_.size(); ++i)
    if (kind_ == Kind::kArray)
      value.push_back(items_[i].built<Value>());
    else
      value[shown_bytes(keys_[i])] = items_[i].built<Value>();
  return value;
}

const Json* Json::find(std::string_view key) const {
  const auto found = std::find(keys_.begin(), keys_.end(), key);
  return found == keys_.end() ? nullptr : &items_[static_cast<size_t>(found - keys_.begin())];
}
bool Json::contains(std::string_view key) const { return find(key) != nullptr; }
Json& Json::operator[](std::string_view key) {
  if (is_null()) kind_ = Kind::kObject;
  CHECK(kind_ == Kind::kObject);
  if (const Json* found = find(key)) return const_cast<Json&>(*found);
  keys_.emplace_back(key);
  return items_.emplace_back();
}
const Json& Json::at(std::string_view key) const {
  const Json* found = find(key);
  if (!found) refuse("JSON", "field \"" + std::string(key) + "\" is missing");
  return *found;
}
bool Json::boolean(std::string_view key) const {
  return to_bool(at(key).built<json>(), key, "JSON");
}
double Json::number(std::string_view key) const {
  const Json& value = at(key);
  if (value.kind_ == Kind::kFloat) return value.float_;
  return to_number(value.built<json>(), key, "JSON");
}
const std::string& Json::text(std::string_view key) const {
  const Json& value = at(key);
  if (value.kind_ != Kind::kText) wrong("JSON", key, value, "a string");
  return value.text_;
}
void Json::push_back(Json item) {
  if (is_null()) kind_ = Kind::kArray;
  CHECK(kind_ == Kind::kArray);
  items_.push_back(std::move(item));
}
void Json::erase(std::string_view key) {
  const Json* found = find(key);
  if (!found) return;
  keys_.erase(keys_.begin() + (found - items_.data()));
  items_.erase(items_.begin() + (found - items_.data()));
}
void Json::update(const Json& object) {
  for (size_t i = 0; i < object.items_.size(); ++i) (*this)[object.keys_[i]] = object.items_[i];
}

std::string Json::dump(int indent) const { return built<json>().dump(indent); }
std::string Json::dump_in_order() const { return built<nlohmann::ordered_json>().dump(); }
Json::operator json() const { return built<json>(); }
void Json::copy(const json& value) {
  switch (value.type()) {
    case json::value_t::boolean:
      *this = value.get<bool>();
      return;
    case json::value_t::number_integer:
      *this = value.get<int64_t>();
      return;
    case json::value_t::number_unsigned:
      *this = value.get<uint64_t>();
      return;
    case json::value_t::number_float:
      *this = value.get<double>();
      return;
    case json::value_t::string:
      *this = value.get_ref<const std::string&>();
      return;
    case json::value_t::array:
      kind_ = Kind::kArray;
      for (const json& item : value) push_back(item);
      return;
    case json::value_t::object:
      kind_ = Kind::kObject;
      for (const auto& [key, item] : value.items()) (*this)[key] = item;
      return;
    default:
      return;
  }
}

}  // namespace weft
