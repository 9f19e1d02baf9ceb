// The completion and the man page hold all that --help lists, and bash and groff take them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <sstream>

#include "launcher/command_options.h"
#include "launcher/completion_text.h"
#include "launcher/exit_codes.h"
#include "launcher/man_text.h"
#include "tests/refusal.h"
#include "tests/temporary_folder.h"

namespace ananke {
namespace {

namespace po = boost::program_options;

std::string help_of(const CommandText& text) {
  for (const Command& command : all_commands()) {
    if (command.name != text.verb) continue;
    testing::internal::CaptureStdout();
    EXPECT_EQ(command.run({"--help"}), 0);
    return testing::internal::GetCapturedStdout();
  }
  return "";
}

TEST(CommandOptionsTest, RefuseWhatTheyDoNotTake) {
  std::string first, second, file;
  std::vector<std::string> rest;
  CommandOptions options("do", "FIRST [SECOND] [options]", "does");
  options.add()("file", po::value(&file)->value_name("FILE"), "a file");
  options.word("FIRST", first);
  options.word("SECOND", second, false);
  EXPECT_ERROR(options.read({"a", "--fil", "b"}), ErrorKind::usage, "do: there is no option '--fil'", "'--file'",
               "`ananke do --help`");
  EXPECT_ERROR(options.read({}), ErrorKind::usage, "do: 0 words without an option's name, needs exactly one FIRST",
               "usage: ananke do FIRST");
  EXPECT_ERROR(CommandOptions("no", "", "").read({"word"}), ErrorKind::usage, "no: 1 words", "needs none");
  CommandOptions two("do", "FIRST [SECOND]", "does");
  two.word("FIRST", first);
  two.word("SECOND", second, false);
  EXPECT_ERROR(two.read({"a", "b", "c"}), ErrorKind::usage, "do: 3 words");
  CommandOptions many("do", "FIRST [MORE]...", "does");
  many.word("FIRST", first);
  many.words("MORE", rest);
  EXPECT_TRUE(many.read({"a", "b", "c"}));
  EXPECT_EQ(rest, (std::vector<std::string>{"b", "c"}));
}

TEST(CommandOptionsTest, DescribeThemselvesAsTheyAreRead) {
  std::string file;
  bool yes = false;
  CommandOptions options("do", "--file FILE", "does");
  options.add()("file,f", po::value(&file)->value_name("FILE")->default_value("a.txt"), "a file")(
      "yes", po::bool_switch(&yes), "a switch");
  CommandText text;
  Arguments arguments;
  arguments.describe = &text;
  EXPECT_FALSE(options.read(arguments));
  ASSERT_EQ(text.options.size(), 3u);
  EXPECT_EQ(text.options[0].name, "help");
  EXPECT_EQ(text.options[1].letter, "f");
  EXPECT_EQ(text.options[1].value, "FILE");
  EXPECT_EQ(text.options[1].standard, "a.txt");
  EXPECT_TRUE(text.options[2].value.empty() && text.options[2].letter.empty());
}

TEST(CommandTexts, HoldEveryCommandAndOptionOfTheHelp) {
  const std::vector<CommandText> commands = describe_commands();
  const std::string completion = bash_completion(commands), man = man_page(commands);
  std::string man_plain = man;
  for (std::size_t at = 0; (at = man_plain.find("\\-", at)) != std::string::npos;) man_plain.erase(at, 1);
  std::set<std::string> listed;
  for (const CommandText& command : commands) {
    SCOPED_TRACE(command.verb);
    const std::string help = help_of(command);
    listed.insert(command.verb);
    EXPECT_NE(completion.find("'" + command.verb + "')"), std::string::npos);
    EXPECT_NE(man_plain.find(".SS \"ananke " + command.verb + "\""), std::string::npos);
    EXPECT_EQ(help.rfind("usage: ananke " + command.verb, 0), 0u) << help;
    EXPECT_FALSE(command.description.empty());
    // Every option of the help's text, found in it and not in the description that it is made from.
    std::istringstream words(help.substr(help.find("options:")));
    std::size_t options = 0;
    for (std::string line; std::getline(words, line);) {
      if (!line.starts_with("  -")) continue;  // the rest of a text
      const std::size_t at = line.find("--");
      const std::string option = line.substr(at, line.find_first_of(" ]", at) - at);
      ++options;
      EXPECT_NE(completion.find(option), std::string::npos) << option;
      EXPECT_TRUE(option == "--help" || man_plain.find("\\fB" + option + "\\fR") != std::string::npos) << option;
    }
    EXPECT_EQ(options, command.options.size()) << help;
    for (const OptionText& option : command.options) {
      EXPECT_FALSE(option.text.empty()) << option.name;
      EXPECT_NE(option.value, "arg") << "--" << option.name << " says nothing of its value";
    }
  }
  for (const Command& command : all_commands()) EXPECT_EQ(listed.count(command.name), command.hidden ? 0u : 1u);
  for (const std::string* text : {&completion, &man}) {
    EXPECT_TRUE(std::ranges::all_of(*text, [](char c) { return c == '\n' || (c >= ' ' && c < 127); }));
  }
}

TEST(CommandTexts, ExitCodesAreThoseOfTheReadme) {
  const std::string readme = read_text(std::filesystem::path(ANANKE_SOURCE_DIR) / "README.md");
  const std::string man = man_page({});
  int last = 0;
  for (const ExitCode& code : exit_codes()) {
    const int number = static_cast<int>(code.kind);
    EXPECT_EQ(number, ++last);
    const std::string row = fmt::format("| {} | {} | {} |", number, name_of(code.kind), code.meaning);
    EXPECT_NE(readme.find(row), std::string::npos) << row;
    EXPECT_NE(man.find(fmt::format(".B {} ({})", number, name_of(code.kind))), std::string::npos);
  }
  EXPECT_STREQ(name_of(static_cast<ErrorKind>(last + 1)), "unknown");
}

class Shell : public testing::Test {
 protected:
  // What the command prints, standard error included.
  std::string output_of(const std::string& command, int* code = nullptr) {
    const std::string line = "cd '" + folder_.path().string() + "' && { " + command + "; } 2>&1";
    FILE* pipe = popen(("bash -c \"" + line + "\"").c_str(), "r");
    std::string text;
    for (int c = 0; (c = std::fgetc(pipe)) != EOF;) text += static_cast<char>(c);
    const int status = pclose(pipe);
    if (code != nullptr) *code = WEXITSTATUS(status);
    return text;
  }
  static bool has(const std::string& program) {
    return std::system(("command -v " + program + " > /dev/null 2>&1").c_str()) == 0;
  }
  TemporaryFolder folder_;
};

TEST_F(Shell, GroffFindsNothingToWarnOfInTheManPage) {
  folder_.write("ananke.1", man_page(describe_commands()));
  if (has("groff")) {
    EXPECT_EQ(output_of("groff -ww -man -Tascii -z ananke.1"), "");
    const std::string page =
        output_of("MANWIDTH=80 groff -man -Tascii ananke.1 | sed 's/.\\x08//g; s/\\x1b\\[[0-9;]*m//g'");
    EXPECT_NE(page.find("--resume"), std::string::npos) << page;
  } else if (has("mandoc")) {
    EXPECT_EQ(output_of("mandoc -T lint -W warning ananke.1"), "");
  } else {
    GTEST_SKIP() << "neither groff nor mandoc is installed";
  }
}

TEST_F(Shell, BashCompletesCommandsOptionsPluginsAndFiles) {
  if (!has("bash")) GTEST_SKIP() << "bash is not installed";
  folder_.write("ananke.bash", bash_completion(describe_commands()));
  folder_.write("a b.textproto", "");
  folder_.write("store.h5", "");
  std::filesystem::create_directory(folder_.path() / "runs");
  int code = -1;
  EXPECT_EQ(output_of("bash -n ananke.bash", &code), "");
  EXPECT_EQ(code, 0);
  folder_.write("ask.bash", R"(source ./ananke.bash
PATH=)" ANANKE_BINARY_DIR R"(/bin:$PATH
complete -p ananke > /dev/null || echo not registered
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
_ananke
printf '%s,' "${COMPREPLY[@]}"
)");
  const auto ask = [&](const std::string& words) { return output_of("bash ask.bash ananke " + words); };
  EXPECT_EQ(ask("da"), "data,");
  EXPECT_NE(ask("''").find("checkpoint,"), std::string::npos);
  EXPECT_EQ(ask("''").find("worker"), std::string::npos) << "hidden";
  EXPECT_EQ(ask("data i"), "import,info,");
  EXPECT_EQ(ask("run --res"), "--resume,");
  EXPECT_EQ(ask("run x --ranks ''"), ",");
  EXPECT_EQ(ask("run ''"), "a b.textproto,runs,");
  EXPECT_EQ(ask("run --run-dir ''"), "runs,");
  EXPECT_EQ(ask("run --run-dir = r"), "runs,") << "as the shell cuts --run-dir=r";
  EXPECT_EQ(ask("export x --dtype ="), "bf16,fp32,");
  EXPECT_EQ(ask("export x --dtype b"), "bf16,");
  EXPECT_EQ(ask("compare runs r"), "runs,");
  EXPECT_EQ(ask("data head s"), "store.h5,");
  EXPECT_EQ(ask("data head -n s"), ",");
  EXPECT_EQ(ask("data import -o s"), "store.h5,");
  EXPECT_EQ(ask("plugins new x --role opt"), "optimizer,");
  EXPECT_EQ(ask("plugins --n"), "--names,");
  EXPECT_EQ(ask("plugins info ada"), "adamw,");
  EXPECT_EQ(ask("completion ''"), "bash,");
  EXPECT_EQ(ask("none ''"), ",");
  EXPECT_EQ(ask("data none ''"), ",");
}

}  // namespace
}  // namespace ananke
