// The misuse half of a test: that something is refused, with which kind, and what the sentence names.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "runtime/base/error.h"

namespace ananke {

// The message that `action` is refused with; a test failure when it is not, or with another kind.
template <class Action>
std::string refusal(ErrorKind kind, Action action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(name_of(error.kind()), std::string(name_of(kind))) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "was not refused";
  return {};
}

#define EXPECT_NAMES(text, word) EXPECT_NE(std::string(text).find(word), std::string::npos) << (text)

}  // namespace ananke
