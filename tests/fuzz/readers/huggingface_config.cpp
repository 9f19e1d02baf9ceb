#include "ananke/model.pb.h"
#include "runtime/checkpoint/huggingface.h"
#include "runtime/config/validate.h"
#include "tests/fuzz/target.h"

// What is read makes a model that a job may have.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ananke;
  using namespace ananke::fuzz;
  static const Folder folder;
  const auto file = folder.write("config.json", text_of(data, size));
  expect_value_or_error(ErrorKind::data, file.string(), [&] {
    const Model model = read_huggingface_config(folder.path());
    require(model.num_hidden_layers() > 0 && model.vocab_size() > 0 && model.head_dim() % 2 == 0, "an empty model");
    check_model(model);
  });
  return 0;
}
