#include "runtime/base/json.h"

#include <gtest/gtest.h>

#include "tests/refusal.h"

namespace ananke {
namespace {

Json parse(const std::string& text) { return Json::parse(text, "file.json"); }

TEST(Json, RefusesWhatIsNotJsonWithLineAndColumn) {
  for (const char* bad :
       {"",         " ",      "{",   "[",       "[1,]",      "{\"a\":}",    "{\"a\" 1}",   "{a:1}",    "{\"a\":1,}",
        "nul",      "tru",    "01",  "-",       "1.",        ".5",          "1e",          "+1",       "NaN",
        "Infinity", "'a'",    "\"a", "\"\\x\"", "\"\\u12\"", "\"\\ud800\"", "\"\\udc00\"", "\"a\nb\"", "1 2",
        "[] x",     "// c\n1"}) {
    EXPECT_NAMES(refusal(ErrorKind::data, [&] { parse(bad); }), "file.json");
  }
  EXPECT_NAMES(refusal(ErrorKind::data, [] { parse("{\n  \"a\": 1,\n  \"a\": 2}"); }), "line 3, column 6");
  EXPECT_NAMES(refusal(ErrorKind::data, [] { parse("{\"a\": 1, \"a\": 2}"); }), "\"a\" stands twice");
  EXPECT_NAMES(refusal(ErrorKind::data, [] { parse(std::string(100000, '[')); }), "deeper than 64");
  EXPECT_NAMES(refusal(ErrorKind::data, [] { parse(std::string("\"a\0b\"", 5)); }), "control character");
}

TEST(Json, KeepsNumbersExact) {
  EXPECT_EQ(parse("18446744073709551615").as_unsigned(), 18446744073709551615U);
  EXPECT_EQ(parse("9007199254740993").as_unsigned(), 9007199254740993U);  // 2^53 + 1, which a double does not hold
  for (const char* not_unsigned : {"18446744073709551616", "-1", "1.0", "1e3", "\"1\"", "true"}) {
    EXPECT_FALSE(parse(not_unsigned).as_unsigned()) << not_unsigned;
  }
  EXPECT_EQ(parse("1e-06").as_double(), 1e-6);
  EXPECT_EQ(parse("-10000.0").as_double(), -10000.0);
  EXPECT_FALSE(parse("1e999").as_double());
  EXPECT_FALSE(parse("\"1\"").as_double());
}

TEST(Json, ReadsStringsAndStructure) {
  EXPECT_EQ(parse(R"("a\"\\\/\b\f\n\r\t\u00e9\u20ac\ud83d\ude00")").text(),
            "a\"\\/\b\f\n\r\t\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80");
  const Json json = parse(" {\"b\": [1, true, null, {}], \"a\": \"x\"} ");
  ASSERT_EQ(json.members().size(), 2U);
  EXPECT_EQ(json.members()[0].first, "b");
  EXPECT_EQ(json.find("b")->items().size(), 4U);
  EXPECT_TRUE(json.find("b")->items()[1].boolean());
  EXPECT_EQ(json.find("c"), nullptr);
  EXPECT_EQ(json.brief(), "{\"b\": [1, true, null, {}], \"a\": \"x\"}");
  EXPECT_LT(parse("[" + std::string(200, ' ') + "\"" + std::string(500, 'x') + "\"]").brief().size(), 80U);
}

}  // namespace
}  // namespace ananke
