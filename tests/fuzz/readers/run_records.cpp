#include "runtime/telemetry/run_records.h"

#include <algorithm>

#include "tests/fuzz/target.h"

// steps.jsonl of a run folder. Every line is a record, or is counted as none.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ananke;
  using namespace ananke::fuzz;
  static const Folder folder;
  const std::string_view text = text_of(data, size);
  const auto file = folder.write("steps.jsonl", text);
  expect_value_or_error(ErrorKind::data, file.string(), [&] {
    const RunRecords records = read_run_records(folder.path());
    require(records.found, "a file that is not found");
    const auto lines = static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n')) + 1;
    std::size_t evaluations = 0;
    for (const auto& [set, of_set] : records.evaluations) evaluations += of_set.size();
    require(records.steps.size() + evaluations + records.events.size() + records.unreadable <= lines,
            "more records than lines");
    require(records.first_unreadable <= lines && (records.unreadable > 0) == (records.first_unreadable > 0),
            "an unreadable line that is not there");
  });
  return 0;
}
