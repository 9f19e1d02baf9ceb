#include <vector>

#include "ananke/checkpoint.pb.h"
#include "ananke/job.pb.h"
#include "runtime/base/hash.h"
#include "runtime/checkpoint/folder.h"
#include "runtime/checkpoint/index.h"
#include "runtime/checkpoint/reader.h"
#include "tests/fuzz/target.h"

namespace ananke::fuzz {
namespace {

// Every tensor is asked for as the index describes it, whole and in the middle: what it answers must be inside.
void locate_tensors(const CheckpointIndex& index) {
  for (const CheckpointTensor& tensor : index.tensors()) {
    expect_value_or_error(ErrorKind::checkpoint, "", [&] {
      Shape shape({2, 3});
      std::vector<float> into(6);
      const StateTarget targets[] = {{tensor.parameter(), tensor.state(), shape, 0, 6, into.data()},
                                     {tensor.parameter(), tensor.state(), shape, 2, 3, into.data()}};
      for (const FilePiece& piece : locate(index, targets)) {
        const StateTarget& target = targets[piece.target];
        require(piece.count > 0 && piece.offset >= 0 && piece.offset_in_target >= 0 &&
                    piece.offset_in_target + piece.count <= target.count,
                "a piece outside its target");
        require(piece.file >= 0 && piece.file < index.files_size(), "a piece of a file that is not there");
      }
    });
  }
}

void read_all(const std::filesystem::path& folder, const std::string& hash) {
  const CheckpointIndex index = read_index(folder, hash);
  expect_value_or_error(ErrorKind::checkpoint, "", [&] { read_checkpoint_job(index); });
  locate_tensors(index);
}

}  // namespace
}  // namespace ananke::fuzz

// index.json with a marker that vouches for it, and one file it may name.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ananke;
  using namespace ananke::fuzz;
  static const Folder folder;
  static const auto shard = folder.write("rank-0000.h5", "123456789");
  const std::string_view text = text_of(data, size);
  const std::string hash = hash_hex(text);
  folder.write("index.json", text);
  folder.write("COMPLETE", "index.json " + hash + "\n");
  expect_value_or_error(ErrorKind::checkpoint, "", [&] { read_all(folder.path(), hash); });
  // What follows waits for files and is not about the text.
  if (size % 16 != 0) return 0;
  const FoundCheckpoint found = inspect_checkpoint(folder.path());
  if (!found.complete()) {
    check_message(Error(ErrorKind::checkpoint, found.problem), ErrorKind::checkpoint, "");
    expect_value_or_error(ErrorKind::checkpoint, folder.path().string(), [&] { CheckpointReader{folder.path()}; });
  }
  return 0;
}
