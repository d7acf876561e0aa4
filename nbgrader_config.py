"""nbgrader's configuration. See "For instructors" in README.md."""

c = get_config()  # noqa: F821  (nbgrader provides it)

c.CourseDirectory.course_id = "from_kv_cache_to_vllm"
c.CourseDirectory.source_directory = "solutions"
c.CourseDirectory.release_directory = "labs"

# What a learner finds in place of a solution. The checks answer it with "Not written yet".
c.ClearSolutions.code_stub = {"python": "raise NotImplementedError"}

# A check may load the model: allow for slow machines.
c.Execute.timeout = 300
c.Execute.kernel_name = "python3"
