// What a rank says about its part of a collective piece of work, and what all ranks make of it.
#pragma once

#include <exception>
#include <span>
#include <string>
#include <string_view>

#include "runtime/base/error.h"

namespace ananke {

struct Verdict {
  enum Kind : char { ok = '+', damaged = '~', refused = '-' };  // damaged: something else may be tried instead
  Kind kind = ok;
  ErrorKind error = ErrorKind::checkpoint;
  std::string text;

  std::string encode() const;
  static Verdict decode(std::string_view blob);
  // Refused wins over damaged; the text names the rank that said so first and how many more did, unless all said the
  // same. The same result on every rank.
  static Verdict of_all(std::span<const std::string> blobs);
};

// Runs `body`; what it throws becomes a verdict of kind `bad`.
template <class Body>
Verdict attempt(Verdict::Kind bad, Body body) noexcept {
  try {
    body();
    return {};
  } catch (const Error& error) {
    return {bad, error.kind(), error.what()};
  } catch (const std::exception& error) {
    return {bad, ErrorKind::checkpoint, error.what()};
  }
}

}  // namespace ananke
