#pragma once
// A layer over nlohmann-json: parses with limits, and reads typed fields with errors that name
// file, field, value and legal values. Callers that use values include <nlohmann/json.hpp> in their
// .cc.
#include <cstdint>
#include <limits>
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
};

// Messages begin with `what`, a path or the name of an input. Text that is not JSON, not UTF-8,
// over a limit or has a key twice in one object throws Error(kModel).
nlohmann::json parse_json(std::string_view text, const std::string& what,
                          JsonDialect dialect = JsonDialect::kStrict,
                          const JsonLimits& limits = {});
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

}  // namespace weft
