#include "runtime/base/json.h"

#include "tests/fuzz/target.h"

namespace ananke::fuzz {
namespace {

std::size_t count(const Json& json) {
  std::size_t values = 1;
  for (const Json& item : json.items()) values += count(item);
  for (const auto& [key, value] : json.members()) {
    require(json.find(key) == &value, "a member that find() does not find");
    values += count(value);
  }
  return values;
}

}  // namespace
}  // namespace ananke::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ananke;
  using namespace ananke::fuzz;
  const std::string_view text = text_of(data, size);
  expect_value_or_error(ErrorKind::data, "input.json", [&] {
    const Json json = Json::parse(text, "input.json");
    require(count(json) <= size, "more values than bytes");
    require(json.brief().size() <= 63, "a long brief()");
    const std::string quoted = json_quoted(json.text());
    require(Json::parse(quoted, "quoted").text() == json.text(), "a quoted string reads back as another");
  });
  return 0;
}
