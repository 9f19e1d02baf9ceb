// EXPECT_ERROR(statement, ErrorKind::config, "part of the message", ...): every part must be in the message.
#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>

#include "runtime/base/error.h"

namespace ananke {

template <class Function>
void expect_error(Function&& function, ErrorKind kind, std::initializer_list<std::string> parts, const char* what) {
  try {
    function();
    ADD_FAILURE() << what << " did not fail";
  } catch (const Error& error) {
    EXPECT_EQ(name_of(error.kind()), std::string(name_of(kind))) << error.what();
    for (const std::string& part : parts) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what() << "\n  has no: " << part;
    }
  }
}

}  // namespace ananke

#define EXPECT_ERROR(statement, kind, ...) ::ananke::expect_error([&] { statement; }, kind, {__VA_ARGS__}, #statement)
