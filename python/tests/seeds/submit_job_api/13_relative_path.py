# 错误：使用相对路径
submit_job("python script.py")  # ValueError

# 正确：使用绝对路径
submit_job("python /home/user/script.py")
