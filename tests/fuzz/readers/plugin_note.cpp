#include <memory>

#include "ananke/plugin.pb.h"
#include "runtime/config/schema.h"
#include "runtime/plugin/catalog.h"
#include "runtime/plugin/note.h"
#include "tests/fuzz/target.h"

namespace ananke::fuzz {
namespace {

// What happens to a note that was read; its fingerprint is another than this program's, most likely, and its messages
// are looked at all the same.
void use(const std::filesystem::path& file, std::shared_ptr<const PluginNote> note) {
  expect_value_or_error(ErrorKind::plugin, file.string(), [&] { check_fingerprint(*note, file); });
  const FoundPlugin plugin{file, note};
  expect_value_or_error(ErrorKind::plugin, file.string(), [&] {
    Schema schema;
    schema.add(plugin);
    require(schema.plugin(note->name()) != nullptr, "a plugin that is not found by its name");
    const auto* config = schema.config_of(plugin);
    require((config == nullptr) == note->config_message().empty(), "a config message that is not there");
    if (config != nullptr) field_names(config), schema.make(config);
  });
  clash_between(plugin, plugin);
}

}  // namespace
}  // namespace ananke::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ananke;
  using namespace ananke::fuzz;
  static const Folder folder;
  const auto file = folder.write("input.so", text_of(data, size));
  std::shared_ptr<const PluginNote> note;
  const bool read = expect_value_or_error(ErrorKind::plugin, file.string(),
                                          [&] { note = std::make_shared<PluginNote>(read_note(file)); });
  if (read) use(file, std::move(note));
  if (size % 64 == 0) {
    const PluginCatalog catalog({folder.path()});
    require(catalog.found().size() + catalog.refused().size() == 1, "a file that is neither found nor refused");
  }
  return 0;
}
