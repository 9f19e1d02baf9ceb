// Rows are documents, and a restored position goes on where it was. Argument: the job file.
#include <cstdio>
#include <cstdlib>

#include "ananke/job.pb.h"
#include "runtime/data/document_source.h"
#include "runtime/engine/plugin_bench.h"

using namespace ananke;

void expect(bool holds, const char* what) {
  if (!holds) std::fprintf(stderr, "FAILED: %s\n", what), std::exit(1);
}

int main(int, char** argv) {
  PluginBench bench(argv[1], {"plugins.@NAME@.shortest=2"});
  Batches& batches = *bench.roles().batches;
  const auto rows_per_step = static_cast<std::int64_t>(bench.job().training().rows_per_step());
  Rows rows, again;
  batches.next(rows_per_step, rows);
  expect(rows.rows == rows_per_step, "all rows are this rank's");
  const auto source = training_documents(bench.job());
  std::vector<std::int32_t> first(2);
  source->read(0, 0, first);
  expect(rows.tokens[0] == first[0] && rows.targets[0] == first[1], "the first row is the first document");

  const std::string position = batches.position();
  batches.next(rows_per_step, rows);
  batches.restore(position);
  batches.next(rows_per_step, again);
  expect(rows.tokens == again.tokens && rows.targets == again.targets, "restore() goes on at position()");
  bool refused = false;
  try {
    batches.restore("of something else");
  } catch (const Error& error) {
    refused = error.kind() == ErrorKind::checkpoint;
  }
  expect(refused, "a foreign position is refused");
  std::puts("ok");
}
