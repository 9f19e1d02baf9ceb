#include "runtime/base/units.h"

#include <gtest/gtest.h>

#include "runtime/base/error.h"

namespace ananke {
namespace {

TEST(Units, RefuseTextThatIsNoQuantityAndQuoteIt) {
  for (const char* text : {"", "x", "-1 GiB", "1 Gib", "12 parsecs", "nan", "1e400"}) {
    try {
      parse_bytes(text);
      FAIL() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::config);
      EXPECT_NE(std::string(error.what()).find(fmt::format("'{}'", text)), std::string::npos) << error.what();
    }
    EXPECT_THROW(parse_duration(text), Error) << text;
  }
}

TEST(Units, ParseWhatTheyPrint) {
  EXPECT_EQ(parse_bytes("64 MiB"), 64u << 20);
  EXPECT_EQ(parse_bytes("2GB"), 2000000000u);
  EXPECT_EQ(parse_bytes("1024"), 1024u);
  EXPECT_EQ(parse_duration("500ms").count(), 500);
  EXPECT_EQ(parse_duration("1.5 min").count(), 90000);
}

TEST(Units, FormatWithThreeDigits) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1024), "1.00 KiB");
  EXPECT_EQ(format_bytes((1ull << 20) - 1), "1.00 MiB");
  EXPECT_EQ(format_bytes(59592351744ull), "55.5 GiB");
  EXPECT_EQ(format_count(951.9e9), "952B");
  EXPECT_EQ(format_count(2.6e6), "2.60M");
  EXPECT_EQ(format_duration(0.035), "35 ms");
  EXPECT_EQ(format_duration(200), "3 min 20 s");
  EXPECT_EQ(format_duration(7500), "2 h 05 min");
}

}  // namespace
}  // namespace ananke
