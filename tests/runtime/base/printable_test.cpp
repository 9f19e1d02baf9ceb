#include "runtime/base/printable.h"

#include <gtest/gtest.h>

#include "runtime/base/error.h"

namespace ananke {
namespace {

TEST(Printable, LetsNoByteThroughThatSteersATerminalOrIsNoText) {
  EXPECT_EQ(printable("\x1b[2Jgone\a"), "\\x1b[2Jgone\\x07");
  EXPECT_EQ(printable(std::string_view("a\0b\x7f\r", 5)), "a\\x00b\\x7f\\x0d");
  EXPECT_EQ(printable("\xc2\x9b"), "\\xc2\\x9b");                             // U+009B, a terminal's escape too
  EXPECT_EQ(printable("\xff\xc3"), "\\xff\\xc3");                             // no UTF-8; half a character
  EXPECT_EQ(printable("\xc0\xaf\xed\xa0\x80"), "\\xc0\\xaf\\xed\\xa0\\x80");  // '/' in two bytes; half a surrogate pair
  EXPECT_EQ(printable("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");           // beyond U+10FFFF
}

TEST(Printable, LeavesTextAlone) {
  EXPECT_EQ(printable(""), "");
  const std::string text = "two lines,\n\ta tab, \xc3\xa4 \xe2\x82\xac \xf0\x9f\x98\x80 \xed\x9f\xbf \xf4\x8f\xbf\xbf";
  EXPECT_EQ(printable(text), text);
  EXPECT_EQ(printable(text, text.size()), text);
}

TEST(Printable, SaysWhatItLeavesOut) {
  EXPECT_EQ(printable("0123456789", 4), "0123... (6 bytes more)");
  EXPECT_EQ(printable("ab\xe2\x82\xac", 3), "ab\xe2\x82\xac");  // never half a character
  EXPECT_EQ(printable("\xe2\x82\xac\xe2\x82\xac", 2), "\xe2\x82\xac... (3 bytes more)");
  EXPECT_EQ(printable("abc", 0), "... (3 bytes more)");
}

TEST(Printable, HoldsForEveryError) {
  const Error error(ErrorKind::data, "no key \x1b]0;title\x07 in " + std::string(1 << 20, 'x'));
  const std::string text = error.what();
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  EXPECT_LT(text.size(), 20000U);
  EXPECT_NE(text.find("bytes more)"), std::string::npos);
}

}  // namespace
}  // namespace ananke
