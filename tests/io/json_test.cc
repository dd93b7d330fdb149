#include "io/json.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/io/io_testing.h"

namespace weft::test {
namespace {

using nlohmann::json;

void expect_json_refused(const std::string& text, const std::string& part,
                         JsonDialect dialect = JsonDialect::kStrict,
                         const JsonLimits& limits = {}) {
  SCOPED_TRACE(text.substr(0, 60));
  expect_error(ErrorKind::kModel, part, [&] { parse_json(text, "the file", dialect, limits); });
}

TEST(Json, BuildsWhatTheLibraryBuilds) {
  for (const char* text : {"null", "true", "-3", "18446744073709551615", "1.5e3", "\"a\\u00e9\\n\"",
                           "[]", "{}", "[1,[2,[3,{\"a\":[4,{}]}]],\"x\"]",
                           "{\"a\":{\"b\":[{\"c\":null},2]},\"d\":false}", "  { \"\" : 0 }  "})
    EXPECT_EQ(parse_json(text, "t"), json::parse(text)) << text;
}

TEST(Json, RefusesWhatIsNotJson) {
  for (const char* text : {"", " ", "{", "[1,]", "{\"a\":1,}", "{a:1}", "1 2", "nul", "\"\x01\"",
                           "\"a", "[NaN]", "-", "01", "\"\\ud800\"", "{\"a\":1}x", "'a'", "/**/1"})
    expect_json_refused(text, "the file: not valid JSON");
  expect_json_refused("\"\xff\"", "UTF-8");
  expect_json_refused(std::string("\"\xc0\xaf\""), "UTF-8");
  expect_json_refused("1e999", "not valid JSON");
}

TEST(Json, TellsTheKeysInOrder) {
  std::vector<std::string> keys;
  const json value = parse_json(R"({"b": {"d": 1, "c": NaN}, "a": [{"b": 2}]})", "t",
                                JsonDialect::kPython, {}, &keys);
  EXPECT_EQ(keys, (std::vector<std::string>{"b", "d", "c", "a", "b"}));
  EXPECT_EQ(value.at("b").at("d"), 1);
}

TEST(Json, Limits) {
  const auto nested = [](int depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_NO_THROW(parse_json(nested(100), "t"));
  expect_json_refused(nested(101), "nested deeper than 100");
  expect_json_refused(std::string(5'000'000, '['), "nested deeper than 100");
  std::string objects;
  for (int i = 0; i < 101; ++i) objects += "{\"a\":";
  expect_json_refused(objects, "nested deeper than 100");
  expect_json_refused("[1,2,3]", "more than 3 JSON values", JsonDialect::kStrict, {.values = 3});
  EXPECT_NO_THROW(parse_json("[1,2,3]", "t", JsonDialect::kStrict, {.values = 4}));
  expect_json_refused("[1,2,3]", "at most 6", JsonDialect::kStrict, {.bytes = 6});
}

TEST(Json, RefusesAKeyTwice) {
  expect_json_refused("{\"a\":1,\"b\":{\"a\":1},\"a\":2}", "\"a\" stands twice");
  expect_json_refused("{\"x\":[{\"b\":1,\"\\u0062\":2}]}", "\"b\" stands twice");
  EXPECT_NO_THROW(parse_json("{\"a\":{\"a\":1}}", "t"));
}

TEST(Json, PythonLiterals) {
  const json value =
      parse_json("{\"a\": -Infinity, \"b\":[NaN,Infinity , 1], \"c\":\"NaN \\\" Infinity\"}", "t",
                 JsonDialect::kPython);
  EXPECT_EQ(value["a"].get<double>(), -INFINITY);
  EXPECT_TRUE(std::isnan(value["b"][0].get<double>()));
  EXPECT_EQ(value["b"][1].get<double>(), INFINITY);
  EXPECT_EQ(value["b"][2], 1);
  EXPECT_EQ(value["c"], "NaN \" Infinity");
  for (const char* text : {"xNaN", "NaNx", "--Infinity", "+Infinity", "[NaN NaN]", "{NaN:1}",
                           "[1NaN]", "[NaN1]", "nan", "inf", "-NaN"})
    expect_json_refused(text, "the file: ", JsonDialect::kPython);
  // A string that begins with our own mark must not become a number.
  expect_json_refused("[\"\\u0000py:NaN\"]", "reserved mark", JsonDialect::kPython);
  expect_json_refused("[\"\\u0000py:NaN\", NaN]", "reserved mark", JsonDialect::kPython);
}

TEST(Json, TypedFieldsNameFileFieldValueAndLegalSet) {
  const json object = parse_json(
      "{\"i\":8,\"f\":8.0,\"h\":8.5,\"neg\":-1,\"big\":18446744073709551615,\"n\":null,\"s\":\"x\","
      "\"b\":true,\"l\":[1,2],\"lf\":[1,\"q\"],\"lb\":[true,false],\"e\":1e300}",
      "cfg.json");
  const std::string what = "cfg.json";
  EXPECT_EQ(json_int(object, "i", what), 8);
  EXPECT_EQ(json_int(object, "f", what), 8);
  EXPECT_EQ(json_int_or(object, "n", what, 5), 5);
  EXPECT_EQ(json_int_or(object, "none", what, 5), 5);
  EXPECT_EQ(json_number(object, "h", what), 8.5);
  EXPECT_EQ(json_number_or(object, "none", what, 2.5), 2.5);
  EXPECT_TRUE(json_bool(object, "b", what));
  EXPECT_FALSE(json_bool_or(object, "none", what, false));
  EXPECT_EQ(json_string(object, "s", what), "x");
  EXPECT_EQ(json_string_or(object, "none", what, "y"), "y");
  EXPECT_EQ(json_ints(object, "l", what), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(json_numbers(object, "l", what), (std::vector<double>{1, 2}));
  EXPECT_EQ(json_bools(object, "lb", what), (std::vector<bool>{true, false}));
  EXPECT_FALSE(json_has(object, "n"));

  const auto refused = [&](const std::string& part, auto&& f) {
    expect_error(ErrorKind::kModel, part, f);
  };
  refused("cfg.json: field \"none\" is missing", [&] { json_int(object, "none", what); });
  refused("field \"n\" is missing", [&] { json_int(object, "n", what); });
  refused("\"h\" is 8.5, must be a whole number", [&] { json_int(object, "h", what); });
  refused("\"neg\" is -1, must be a whole number of at least 0",
          [&] { json_int(object, "neg", what, {.min = 0}); });
  refused("must be a whole number in [1, 4]",
          [&] { json_int(object, "i", what, {.min = 1, .max = 4}); });
  refused("\"big\" is 18446744073709551615", [&] { json_int(object, "big", what); });
  refused("\"e\" is 1e+300", [&] { json_int(object, "e", what); });
  refused("\"s\" is \"x\", must be a number", [&] { json_number(object, "s", what); });
  refused("\"i\" is 8, must be true or false", [&] { json_bool(object, "i", what); });
  refused("\"i\" is 8, must be a string", [&] { json_string(object, "i", what); });
  refused("\"lf[1]\" is \"q\", must be a whole number", [&] { json_ints(object, "lf", what); });
  refused("\"i\" is 8, must be a list of whole numbers", [&] { json_ints(object, "i", what); });
  refused("an object is due where [1] stands", [&] { json_int(json::array({1}), "a", what); });
  refused("\"s\" is \"x\"", [&] { json_int_or(object, "s", what, 1); });
}

TEST(Json, ReadsRegularFilesOnly) {
  TempDir dir;
  EXPECT_EQ(read_json_file(dir.write("a.json", "{\"x\":-Infinity}"))["x"].get<double>(), -INFINITY);
  expect_error(ErrorKind::kModel, "cannot be opened", [&] { read_json_file(dir / "none.json"); });
  expect_error(ErrorKind::kModel, "is a folder", [&] { read_json_file(dir.path()); });
  expect_error(ErrorKind::kModel, "not a regular file", [&] { read_json_file("/dev/zero"); });
  expect_error(ErrorKind::kModel, "a.json: holds 15 bytes, at most 4",
               [&] { read_text_file(dir / "a.json", 4); });
}

// A value is written with the bytes that nlohmann-json writes for it.
TEST(Json, WritesWhatTheLibraryWrites) {
  const std::string text = "\"\\\n\x01\xc3\xb6\xe2\x82\xac/\x7f";
  const json expected{{"z", {1.0, 1e22, 1e-7, 0.1f, -0.0, NAN, 123456789.125}},
                      {"a", {{"text", text}, {"null", nullptr}, {"on", true}}},
                      {"whole", {INT64_MIN, UINT64_MAX, -1, size_t{3}}},
                      {text, {{"b", json::array()}, {"a", json::object()}}},
                      {"one", {{"p", "q"}}}};
  Json made{{"z", Json::array({1.0, 1e22, 1e-7, 0.1f, -0.0, NAN, 123456789.125})},
            {"a", {{"text", text}, {"null", nullptr}, {"on", true}}},
            {"whole", Json::array({INT64_MIN, UINT64_MAX, -1, size_t{3}})},
            {"one", {{"p", "q"}}}};
  made[text]["b"] = Json::array();
  made[text]["a"] = Json::object();
  EXPECT_EQ(made.dump(), expected.dump());
  EXPECT_EQ(made.dump(1), expected.dump(1));
  EXPECT_EQ(Json(expected).dump(), expected.dump());
  EXPECT_EQ(json(made).dump(), expected.dump());
  EXPECT_EQ(Json("\xff").dump(), "\"\\\\xff\"");
  EXPECT_EQ(Json().dump(), "null");
  EXPECT_EQ(Json(std::vector<int>{2, 1}).dump(), "[2,1]");
  EXPECT_EQ(Json(std::map<std::string, double>{{"b", 1}, {"a", 2}}).dump(),
            "{\"a\":2.0,\"b\":1.0}");
}

TEST(Json, KeepsTheOrderOfKeys) {
  Json object{{"b", 1}, {"a", {{"d", 2}, {"c", 3}}}};
  object["b"] = "last";
  EXPECT_EQ(object.dump_in_order(), "{\"b\":\"last\",\"a\":{\"d\":2,\"c\":3}}");
  object.update({{"c", nullptr}, {"a", false}});
  object.erase("b");
  object.erase("none");
  EXPECT_EQ(object.dump_in_order(), "{\"a\":false,\"c\":null}");
  EXPECT_EQ(object.keys(), (std::vector<std::string>{"a", "c"}));
}

TEST(Json, ReadsItsFields) {
  const Json object{{"f", 0.5}, {"i", -2}, {"u", 7u}, {"s", "x"}, {"b", true}, {"n", nullptr}};
  EXPECT_EQ(object.number("f") + object.number("i") + object.number("u"), 5.5);
  EXPECT_EQ(object.text("s"), "x");
  EXPECT_TRUE(object.boolean("b"));
  EXPECT_TRUE(object.contains("n") && object.at("n").is_null() && !object.contains("m"));
  EXPECT_EQ(object.items().size(), 6u);
  const auto refused = [](const char* part, auto&& read) {
    expect_error(ErrorKind::kModel, part, read);
  };
  refused("field \"m\" is missing", [&] { object.at("m"); });
  refused("\"s\" is \"x\", must be a number", [&] { object.number("s"); });
  refused("\"i\" is -2, must be a string", [&] { object.text("i"); });
  refused("\"n\" is null, must be true or false", [&] { object.boolean("n"); });
}

}  // namespace
}  // namespace weft::test
