// The misuse half of a test: that something is refused, with which kind, and what the sentence names.
//   EXPECT_ERROR(statement, ErrorKind::config, "part of the message", ...): every part must be in it
#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>

#include "runtime/base/error.h"

namespace ananke {

// The message that `action` is refused with; a test failure when it is not, or with another kind.
template <class Action>
std::string refusal(ErrorKind kind, Action&& action, const char* what = "it") {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(name_of(error.kind()), std::string(name_of(kind))) << error.what();
    return error.what();
  }
  ADD_FAILURE() << what << " was not refused";
  return {};
}

template <class Action>
void expect_error(Action&& action, ErrorKind kind, std::initializer_list<std::string> parts, const char* what) {
  const std::string message = refusal(kind, action, what);
  for (const std::string& part : parts) {
    EXPECT_NE(message.find(part), std::string::npos) << message << "\n  has no: " << part;
  }
}

}  // namespace ananke

#define EXPECT_NAMES(text, word) EXPECT_NE(std::string(text).find(word), std::string::npos) << (text)
#define EXPECT_ERROR(statement, kind, ...) ::ananke::expect_error([&] { statement; }, kind, {__VA_ARGS__}, #statement)
